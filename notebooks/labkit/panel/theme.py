"""How every plot looks, and how JupyterLab is told to draw it."""

from __future__ import annotations

from typing import Any

INK = "currentColor"
# JupyterLab 4.6 draws a plot before it stands in the page, where it would be 0 pixels wide, and
# draws it again and again for as long as its picture is empty: no other code runs any more.  The
# width is read anew twice a second, which also follows a sidebar that opens.
WIDTH = {
    "name": "width",
    "init": "containerSize()[0] || 200",
    "on": [
        {
            "events": [{"source": "window", "type": "resize"}, {"type": "timer", "throttle": 500}],
            "update": "containerSize()[0] || width",
        }
    ],
}
EMBED = {
    "actions": False,
    "renderer": "svg",
    "defaultStyle": ".vega-embed{display:block;width:100%}",
    "patch": [
        {"op": "test", "path": "/signals/0/name", "value": "width"},
        {"op": "replace", "path": "/signals/0", "value": WIDTH},
    ],
}
STYLE: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **{f"{part}Color": INK for part in ("label", "title", "domain", "tick", "grid")},
        "gridOpacity": 0.15,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "title": None,
        "orient": "bottom",
        "direction": "vertical",
        "columns": 1,
        "labelColor": INK,
        "labelFontSize": 12,
        "labelLimit": 0,
        "symbolSize": 70,
        "symbolOpacity": 1,  # else as faint as the samples
        "layout": {"bottom": {"anchor": "start", "bounds": "full"}},
    },
    "title": {"color": INK, "subtitleColor": INK, "anchor": "start", "fontSize": 14},
    "text": {"color": INK, "fontSize": 12},
}
