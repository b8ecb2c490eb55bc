"""Tools and exact checks of the exercises."""

from labkit.exercises import (
    capstone,
    kernels,
    networks,
    packing,
    roofline,
    sharding,
    small_model,
    stages,
    tensor_parallel,
    traces,
)
from labkit.exercises.attention_checks import check_attention
from labkit.exercises.bandwidth_checks import check_bandwidths
from labkit.exercises.cluster_faults import FAULTS
from labkit.exercises.cluster_readings import run_cluster
from labkit.exercises.code_checks import Wires, run_ranks
from labkit.exercises.formula_checks import (
    check_attainable,
    check_busy_share,
    check_choose,
    check_fits,
    check_job_hours,
    check_on_ranks,
    check_per_sm_ratio,
    check_percentile,
    check_price,
    check_split_time,
    check_step_price,
)
from labkit.exercises.incident import ClusterReading, Incident
from labkit.exercises.incident_checks import check_disagreeing, check_stands_out
from labkit.exercises.kernel_checks import check_softmax
from labkit.exercises.memory_checks import check_ledger, check_zero_step
from labkit.exercises.packing import check_place
from labkit.exercises.parallel_checks import (
    check_all_reduce,
    check_buckets,
    check_gradient_averaging,
    check_pair,
    check_split_matmul,
    check_sync,
)
from labkit.exercises.scaling_checks import check_loss_scaler, check_scaled_step
from labkit.exercises.schedule import (
    bubble,
    check_order,
    check_schedule,
    check_zero_bubble,
    order_of,
)
from labkit.exercises.sharding_checks import check_zero1, check_zero2, check_zero3
from labkit.exercises.timer_check import check_timer
from labkit.exercises.traces import check_bottlenecks
