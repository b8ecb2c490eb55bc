BEGIN TRANSACTION;
CREATE TABLE activity (
	lease INTEGER NOT NULL, 
	day INTEGER NOT NULL, 
	active_s FLOAT NOT NULL, 
	idle_s FLOAT NOT NULL, 
	unknown_s FLOAT NOT NULL, 
	PRIMARY KEY (lease, day), 
	FOREIGN KEY(lease) REFERENCES leases (id)
);
INSERT INTO "activity" VALUES(1,20000,60.0,5.0,0.5);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0012');
CREATE TABLE gpus (
	uuid VARCHAR NOT NULL, 
	idx INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	memory_mib INTEGER NOT NULL, 
	memory_slices INTEGER NOT NULL, 
	sm_count INTEGER, 
	mig BOOLEAN, 
	state VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	course VARCHAR NOT NULL, draining TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (uuid)
);
INSERT INTO "gpus" VALUES('GPU-0',0,'A100-SXM4-40GB',40960,8,108,1,'ok','',3,'','');
INSERT INTO "gpus" VALUES('GPU-1',1,'A100-SXM4-40GB',40960,8,NULL,0,'unknown','It does not answer.',1,'vision','a fan is loud');
CREATE TABLE identity (
	id INTEGER NOT NULL, 
	ledger VARCHAR NOT NULL, 
	engine VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "identity" VALUES(1,'c49045d5244f4ee29e00f3a73c491c7f','ENGINE:1');
CREATE TABLE layouts (
	id INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	course VARCHAR NOT NULL, 
	partitions TEXT NOT NULL, 
	times TEXT NOT NULL, 
	made_by VARCHAR NOT NULL, 
	made_at FLOAT NOT NULL, 
	state VARCHAR NOT NULL, 
	message TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "layouts" VALUES(1,'practical','','{"GPU-0":["1g.5gb","3g.20gb"]}','[]','person:root',1790000000.0,'in-force','term');
CREATE TABLE lease_slices (
	lease INTEGER NOT NULL, 
	slice INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	PRIMARY KEY (lease, slice), 
	FOREIGN KEY(lease) REFERENCES leases (id), 
	FOREIGN KEY(slice) REFERENCES slices (id)
);
INSERT INTO "lease_slices" VALUES(1,1,0);
INSERT INTO "lease_slices" VALUES(2,3,0);
CREATE TABLE leases (
	id INTEGER NOT NULL, 
	ticket INTEGER, 
	generation INTEGER NOT NULL, 
	user VARCHAR NOT NULL, 
	server VARCHAR NOT NULL, 
	course VARCHAR NOT NULL, 
	shape VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	granted_at FLOAT NOT NULL, 
	holder VARCHAR NOT NULL, 
	taken_at FLOAT, 
	attached_at FLOAT, 
	releasing_at FLOAT, 
	ended_at FLOAT, 
	ends_at FLOAT, 
	extensions INTEGER NOT NULL, 
	reason TEXT NOT NULL, warned_at FLOAT, reclaim_at FLOAT, warn_kind VARCHAR DEFAULT '' NOT NULL, warn_reason TEXT DEFAULT '' NOT NULL, keepalives INTEGER DEFAULT '0' NOT NULL, keepalive_until FLOAT, warn_by VARCHAR DEFAULT '' NOT NULL, purpose VARCHAR DEFAULT 'server' NOT NULL, server_started VARCHAR DEFAULT '' NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(ticket) REFERENCES tickets (id)
);
INSERT INTO "leases" VALUES(1,2,1,'ada','','vision','1g.5gb','released',1746800000.0,'container:aa',1746800001.0,1746800002.0,1746800003.0,1746803600.0,NULL,0,'It was given back.',NULL,NULL,'','',0,NULL,'server:ada/','server','');
INSERT INTO "leases" VALUES(2,3,2,'bob','','vision','1g.5gb','warned',1790000000.0,'container:bb',1790000001.0,1790000002.0,NULL,NULL,1790007200.0,1,'',1790000003.0,1790000004.0,'idle','Unused for an hour.',1,1790000009.0,'person:ina','server','2026-09-21T13:20:00Z');
CREATE TABLE "messages" (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	"by" VARCHAR NOT NULL, 
	to_user VARCHAR, 
	to_server VARCHAR, 
	to_course VARCHAR, 
	text TEXT NOT NULL, 
	until FLOAT NOT NULL, 
	state VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "messages" VALUES(1,1790000000.0,'person:ina','ada',NULL,NULL,'Come to room 2, ada.',1790000900.0,'open');
INSERT INTO "messages" VALUES(2,1790000000.0,'person:ina',NULL,NULL,'vision','The exam is over.',1790000900.0,'over');
CREATE TABLE "pool_state" (
	id INTEGER NOT NULL, 
	paused TEXT NOT NULL, pause_kind VARCHAR DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "pool_state" VALUES(1,'Repairs.','staff');
CREATE TABLE reservations (
	id INTEGER NOT NULL, 
	course VARCHAR NOT NULL, 
	shape VARCHAR NOT NULL, 
	count INTEGER NOT NULL, 
	weekdays INTEGER NOT NULL, 
	first_date VARCHAR NOT NULL, 
	last_date VARCHAR NOT NULL, 
	from_time VARCHAR NOT NULL, 
	to_time VARCHAR NOT NULL, 
	tz VARCHAR NOT NULL, 
	grace_s FLOAT NOT NULL, 
	made_by VARCHAR NOT NULL, 
	made_at FLOAT NOT NULL, 
	state VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	message TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "reservations" VALUES(1,'vision','1g.5gb',7,2,'2026-06-02','','10:00','12:00','Europe/Berlin',900.0,'person:ina',1790000000.0,'planned','','week 1');
INSERT INTO "reservations" VALUES(2,'vision','3g.20gb',1,0,'2026-05-02','2026-05-02','10:00','12:00','Europe/Berlin',900.0,'person:ada',1790000000.0,'over','','');
CREATE TABLE slices (
	id INTEGER NOT NULL, 
	gpu VARCHAR NOT NULL, 
	generation INTEGER NOT NULL, 
	profile VARCHAR NOT NULL, 
	start INTEGER NOT NULL, 
	size INTEGER NOT NULL, 
	sm_count INTEGER NOT NULL, 
	memory_mib INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	gi_id INTEGER, 
	ci_id INTEGER, 
	uuid VARCHAR, 
	lease INTEGER, 
	tried BOOLEAN NOT NULL, 
	attempts INTEGER NOT NULL, 
	retry_at FLOAT NOT NULL, 
	remake BOOLEAN NOT NULL, 
	lost BOOLEAN NOT NULL, 
	reason TEXT NOT NULL, 
	course VARCHAR NOT NULL, draining TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(gpu) REFERENCES gpus (uuid)
);
INSERT INTO "slices" VALUES(1,'GPU-0',1,'1g.5gb',2,1,14,4864,'gone',9,0,'MIG-1',NULL,1,0,0.0,0,0,'','','');
INSERT INTO "slices" VALUES(2,'GPU-0',2,'1g.5gb',0,1,14,4864,'free',7,0,'MIG-2',NULL,1,0,0.0,1,0,'','','a demonstration');
INSERT INTO "slices" VALUES(3,'GPU-0',3,'1g.5gb',3,1,14,4864,'leased',8,0,'MIG-3',2,1,1,1790000005.0,0,1,'','','');
CREATE TABLE tickets (
	id INTEGER NOT NULL, 
	user VARCHAR NOT NULL, 
	server VARCHAR NOT NULL, 
	course VARCHAR NOT NULL, 
	shape VARCHAR NOT NULL, 
	asked VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	attended_at FLOAT NOT NULL, 
	offered_at FLOAT, 
	lease INTEGER, 
	reason VARCHAR NOT NULL, 
	message TEXT NOT NULL, next_at FLOAT, purpose VARCHAR DEFAULT 'server' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "tickets" VALUES(2,'ada','','vision','1g.5gb','at least 4 GiB','taken',1746800000.0,1746800001.0,NULL,1,'','',NULL,'server');
INSERT INTO "tickets" VALUES(3,'bob','','vision','1g.5gb','at least 4 GiB','taken',1790000000.0,1790000001.0,NULL,2,'','',NULL,'server');
INSERT INTO "tickets" VALUES(4,'cleo','','vision','1g.5gb','at least 4 GiB','offered',1790000000.0,1790000001.0,1790000002.0,NULL,'','',NULL,'server');
INSERT INTO "tickets" VALUES(5,'dan','','vision','1g.5gb','at least 4 GiB','waiting',1790000000.0,1790000001.0,NULL,NULL,'','',1790000001.0,'server');
INSERT INTO "tickets" VALUES(6,'bob','','vision','2x1g.5gb','at least 4 GiB','waiting',1790000000.0,1790000001.0,NULL,NULL,'','',NULL,'borrow');
CREATE TABLE transitions (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	kind VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	from_state VARCHAR NOT NULL, 
	to_state VARCHAR NOT NULL, 
	"by" VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	course VARCHAR NOT NULL, action VARCHAR DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "transitions" VALUES(13,1790000000.0,'slice','2','','free','pool','','','');
INSERT INTO "transitions" VALUES(14,1790000000.0,'slice','3','','leased','pool','','','');
INSERT INTO "transitions" VALUES(15,1790000000.0,'ticket','3','','taken','spawner','','vision','');
INSERT INTO "transitions" VALUES(16,1790000000.0,'lease','2','','warned','person:ina','the next group waits','vision','warn');
INSERT INTO "transitions" VALUES(17,1790000000.0,'ticket','4','','offered','spawner','','vision','');
INSERT INTO "transitions" VALUES(18,1790000000.0,'ticket','5','','waiting','person:ina','first','vision','next');
INSERT INTO "transitions" VALUES(19,1790000000.0,'ticket','6','','waiting','server:bob/','','vision','waiting');
INSERT INTO "transitions" VALUES(20,1790000000.0,'reservation','1','','planned','person:ina','','vision','planned');
INSERT INTO "transitions" VALUES(21,1790000000.0,'reservation','2','','over','person:ada','','vision','over');
INSERT INTO "transitions" VALUES(22,1790000000.0,'message','1','','open','person:ina','','','open');
INSERT INTO "transitions" VALUES(23,1790000000.0,'message','2','','over','person:ina','','vision','over');
INSERT INTO "transitions" VALUES(24,1790000000.0,'layout','1','','in-force','person:root','','','apply');
INSERT INTO "transitions" VALUES(25,1790000000.0,'pool','','granting','paused','person:root','Repairs.','','pause');
CREATE INDEX slices_state ON slices (state);
CREATE UNIQUE INDEX slices_generation ON slices (gpu, generation);
CREATE INDEX tickets_state ON tickets (state);
CREATE INDEX leases_state ON leases (state);
CREATE INDEX leases_user ON leases (user);
CREATE INDEX lease_slices_slice ON lease_slices (slice);
CREATE INDEX transitions_at ON transitions (at);
CREATE INDEX reservations_state ON reservations (state);
CREATE INDEX layouts_state ON layouts (state);
CREATE INDEX activity_day ON activity (day);
CREATE INDEX messages_state ON messages (state);
CREATE INDEX transitions_target ON transitions (kind, target);
CREATE INDEX transitions_actions ON transitions (id) WHERE action != '';
COMMIT;
