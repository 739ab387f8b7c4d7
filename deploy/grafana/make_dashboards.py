#!/usr/bin/env python3
"""Writes the dashboards of this folder from the tables below: one line a panel, so that what is shown can be read and reviewed.

  make_dashboards.py [--check]    --check: say which files differ and write nothing

In queries SELECT stands for the labels that pick servers. Every panel names its unit, and every query goes through the data
source variable.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECT = 'job="$job", instance=~"$instance"'
KERNELS = SELECT + ', kernel=~"$kernel"'
NAIVE = 'kernel=~".*naive.*"'
FUSED = 'kernel=~".*(prefill|decode).*"'
WIDTH = 24  # columns of a Grafana page
TITLES = {"service": "service", "kernels": "kernels", "cache": "cache", "device": "device"}


def select(expression):
    return expression.replace("KERNELS", KERNELS).replace("SELECT", SELECT)


def rate(metric, by, labels="SELECT"):
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(q, metric, by, labels="SELECT"):
    groups = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({groups}) (rate({metric}_bucket{{{labels}}}[$__rate_interval])))"


def ratio(over, under):
    """Of two sums by the same labels; no point where nothing ran."""
    return f"{over} / ({under} > 0)"


def mean(metric, by, labels="SELECT"):
    return ratio(rate(metric + "_sum", by, labels), rate(metric + "_count", by, labels))


def panel(kind, title, unit, queries, text, *, width=8, height=8, **defaults):
    """queries: (expression, legend) pairs. defaults: more of Grafana's field options (min, max, thresholds, mappings)."""
    custom = {}
    options = {}
    if kind == "timeseries":
        stacked = defaults.pop("stacked", False)
        custom = {"lineWidth": 1, "fillOpacity": 30 if stacked else 8, "showPoints": "never", "spanNulls": False,
                  "stacking": {"mode": "normal" if stacked else "none", "group": "A"}}
        options = {"legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
                   "tooltip": {"mode": "multi", "sort": "desc"}}
        defaults.setdefault("min", 0)
    elif kind == "stat":
        options = {"colorMode": "value", "graphMode": "area", "textMode": "auto", "justifyMode": "auto",
                   "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    elif kind == "heatmap":
        options = {"calculate": False, "yAxis": {"unit": unit}, "color": {"mode": "scheme", "scheme": "Viridis", "steps": 64},
                   "cellGap": 1, "tooltip": {"show": True, "yHistogram": False}}
    elif kind == "table":
        options = {"showHeader": True}
    return {
        "type": kind, "title": title, "description": text, "datasource": SOURCE, "width": width, "height": height,
        "fieldConfig": {"defaults": {"unit": unit, **({"custom": custom} if custom else {}), **defaults}, "overrides": []},
        "options": options,
        "targets": [{"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": select(expression), "legendFormat": legend,
                     **({"format": "heatmap"} if kind == "heatmap" else {}),
                     **({"format": "table", "instant": True} if kind == "table" else {})}
                    for index, (expression, legend) in enumerate(queries)],
    }


def graph(title, unit, queries, text, **options):
    return panel("timeseries", title, unit, queries, text, **options)


def stat(title, unit, expression, text, **options):
    return panel("stat", title, unit, [(expression, options.pop("legend", "{{instance}}"))], text,
                 **{"width": 4, "height": 4, **options})


def heatmap(title, unit, metric, labels, text, **options):
    return panel("heatmap", title, unit, [(f"sum by (le) (increase({metric}_bucket{{{labels}}}[$__rate_interval]))", "{{le}}")], text,
          **options)


def levels(*steps):
    """(colour, from) pairs, the first without a bound."""
    return {"mode": "absolute", "steps": [{"color": color, "value": bound} for color, bound in steps]}


def yes_no(yes, no, good):
    colors = {good: "green", 1 - good: "red"}
    return [{"type": "value", "options": {"1": {"text": yes, "color": colors[1]}, "0": {"text": no, "color": colors[0]}}}]


SERVICE = [
    ("Now", [
        stat("Ready", "none", "attnd_ready{SELECT}", "What health and /readyz report.", mappings=yes_no("ready", "not ready", 1)),
        stat("Draining", "none", "attnd_draining{SELECT}", "The server retires or stops.", mappings=yes_no("draining", "no", 0)),
        stat("Requests", "reqps", rate("attnd_requests_total", "instance"), "Answers a second, each message of a stream counted."),
        stat("Failed", "percentunit", "instance:attnd_requests_failed:ratio_rate5m{SELECT}",
             "Answers that are the server's fault or its lack of room, of all answers in five minutes.",
             min=0, max=1, thresholds=levels(("green", None), ("yellow", 0.01), ("red", 0.05))),
        stat("In the queue", "short", "attnd_queue_depth{SELECT}", "Requests admitted and not yet on the device."),
        stat("Open streams", "short", "attnd_open_streams{SELECT}", "DecodeStream calls open now."),
    ]),
    ("Requests", [
        graph("Requests by method", "reqps", [(rate("attnd_requests_total", "method"), "{{method}}")],
              "Answers a second, whatever their code."),
        graph("Requests by code", "reqps", [(rate("attnd_requests_total", "code"), "{{code}}")], "Answers a second.", stacked=True),
        graph("Failures by code", "reqps", [(rate("attnd_requests_total", "code", 'SELECT, code!="OK"'), "{{code}}")],
              "Answers other than OK, clients' mistakes included."),
        graph("Rejections", "reqps", [(rate("attnd_rejected_total", "reason"), "{{reason}}")],
              "Requests refused or dropped before they ran.", width=12),
        graph("Bytes in and out", "Bps", [(rate("attnd_transport_bytes_total", "path, direction"), "{{path}} {{direction}}")],
              "Tensors and messages between clients and server.", width=12),
        graph("Connections", "short", [("sum by (instance) (attnd_connections{SELECT})", "{{instance}}")], "Open to the gRPC port.", width=12),
        graph("Connections refused", "ops", [(rate("attnd_connections_refused_total", "instance"), "{{instance}}")],
              "For want of file descriptors, or beyond --max_connections.", width=12),
    ]),
    ("Latency of calls answered OK", [
        graph("Median", "s", [(quantile(0.5, "attnd_request_duration_seconds", "method"), "{{method}}")], "From receipt to answer."),
        graph("90th percentile", "s", [(quantile(0.9, "attnd_request_duration_seconds", "method"), "{{method}}")],
              "From receipt to answer."),
        graph("99th percentile", "s", [(quantile(0.99, "attnd_request_duration_seconds", "method"), "{{method}}")],
              "From receipt to answer."),
        heatmap("Decode steps", "s", "attnd_request_duration_seconds", 'SELECT, method=~"Decode|DecodeStream"',
                "Where the answers lie, not only their percentiles.", width=12),
        graph("Mean time by stage", "s", [(mean("attnd_stage_duration_seconds", "stage"), "{{stage}}")],
              "Where a request's time goes between receipt and answer.", width=12, stacked=True),
    ]),
    ("Queue", [
        graph("Queue wait", "s", [(quantile(0.5, "attnd_queue_wait_seconds", "class"), "{{class}} p50"),
                                  (quantile(0.99, "attnd_queue_wait_seconds", "class"), "{{class}} p99")],
              "From admission to the launch of the first batch that holds work of the request."),
        graph("Requests waiting and running", "short", [("sum(attnd_queue_depth{SELECT})", "waiting"),
                                                         ("sum(attnd_running_requests{SELECT})", "running")],
              "Waiting ones are not on the device yet."),
        graph("Bytes waiting", "bytes", [("sum(attnd_queue_bytes{SELECT})", "waiting")], "What the waiting requests hold in memory."),
    ]),
    ("Batches", [
        graph("Sequences in a batch", "short", [(quantile(0.5, "attnd_batch_sequences", ""), "p50"),
              (quantile(0.99, "attnd_batch_sequences", ""), "p99"),
                                                ("avg(instance:attnd_batch_sequences:mean_rate5m{SELECT})", "mean, 5 minutes")],
              "How many sequences share a launch."),
        graph("Requests and tokens in a batch", "short", [(mean("attnd_batch_requests", "job"), "requests"),
              (mean("attnd_batch_tokens", "job"), "tokens")],
              "Means over the batches of the interval."),
        graph("Why batches close", "ops", [(rate("attnd_batch_closed_total", "reason"), "{{reason}}")],
              "queue_empty: all that waited went along.", stacked=True),
        heatmap("Batch sizes", "short", "attnd_batch_sequences", "SELECT", "Sequences in a batch.", width=WIDTH),
    ]),
    ("Servers", [
        panel("table", "Builds", "none", [("attnd_build_info{SELECT}", "")], "What runs where.", width=16, height=6),
        graph("Dropped samples", "short", [("increase(attnd_metrics_dropped_samples_total{SELECT}[$__rate_interval])", "{{instance}}")],
              "Above 0 the server met a fault in its own metrics.", height=6),
    ]),
]

KERNEL_PANELS = [
    ("Now", [
        stat("Device busy", "percentunit", "sum by (instance) (instance_kernel:attnd_kernel_busy:ratio_rate5m{SELECT})",
             "Share of the last five minutes spent in kernels.", min=0, max=1),
        stat("Best HBM throughput", "Bps", "max by (instance) (attnd_hbm_throughput_bytes_per_second{KERNELS})",
             "Modelled bytes over kernel time, last 10 seconds, of the best kernel."),
        stat("Best share of the ceiling", "percentunit", "max by (instance) (instance_kernel:attnd_hbm_throughput:ceiling_ratio_rate5m{KERNELS})",
             "Of the bandwidth that the server measured at its start; above 100 % the data came from a cache.", min=0),
        stat("Measured ceiling", "Bps", 'max by (instance) (attnd_device_hbm_bandwidth_bytes_per_second{SELECT, kind="measured"})',
             "Read bandwidth of the device's memory, measured at start."),
        stat("Launches", "ops", rate("attnd_kernel_launches_total", "instance"), "Kernel launches a second."),
        stat("Exact reruns", "short", "sum by (instance) (increase(attnd_exact_reruns_total{SELECT}[$__range]))",
             "Tiles computed again since they held a non-finite output: NaN or Inf came in."),
    ]),
    ("Time", [
        graph("Median launch", "s", [(quantile(0.5, "attnd_kernel_duration_seconds", "kernel", "KERNELS"), "{{kernel}}")],
              "Measured on the device."),
        graph("99th percentile of launches", "s", [(quantile(0.99, "attnd_kernel_duration_seconds", "kernel", "KERNELS"), "{{kernel}}")],
              "Measured on the device."),
        graph("Launches by kernel", "ops", [(rate("attnd_kernel_duration_seconds_count", "kernel", "KERNELS"), "{{kernel}}")], "A second."),
        graph("Busy share by kernel", "percentunit", [(rate("attnd_kernel_busy_seconds_total", "kernel", "KERNELS"), "{{kernel}}")],
              "Of wall time; what is missing to 100 % is idle.", stacked=True, width=12),
        heatmap("Launch durations", "s", "attnd_kernel_duration_seconds", "KERNELS", "Of the chosen kernels.", width=12),
    ]),
    ("Memory and arithmetic", [
        graph("HBM throughput", "Bps", [(ratio(rate("attnd_kernel_hbm_bytes_total", "kernel", "KERNELS"),
                                               rate("attnd_kernel_busy_seconds_total", "kernel", "KERNELS")), "{{kernel}}"),
                                        ('max(attnd_device_hbm_bandwidth_bytes_per_second{SELECT, kind="measured"})', "measured ceiling")],
              "Modelled bytes over kernel time."),
        graph("Share of the measured ceiling", "percentunit", [
            ("max by (kernel) (instance_kernel:attnd_hbm_throughput:ceiling_ratio_rate5m{KERNELS})", "{{kernel}}")],
              "Five minutes, best server. Above 100 % the data came from a cache."),
        graph("FLOP rate", "flops", [(ratio(rate("attnd_kernel_flops_total", "kernel", "KERNELS"),
                                            rate("attnd_kernel_busy_seconds_total", "kernel", "KERNELS")), "{{kernel}}")],
              "Useful floating point operations over kernel time."),
        graph("Last window as the server reports it", "Bps", [("max by (kernel) (attnd_hbm_throughput_bytes_per_second{KERNELS})",
              "{{kernel}}")],
              "Launches of the last 10 seconds; 0 without any."),
        graph("Bytes read and written", "Bps", [(rate("attnd_kernel_hbm_bytes_total", "kernel, direction", "KERNELS"),
              "{{kernel}} {{direction}}")],
              "Over wall time: what the memory carries, idle time included."),
        graph("Intensity", "suffix:FLOP/B", [(ratio(rate("attnd_kernel_flops_total", "kernel", "KERNELS"),
                                                    rate("attnd_kernel_hbm_bytes_total", "kernel", "KERNELS")), "{{kernel}}")],
              "Floating point operations a byte: low is bound by memory, high by arithmetic."),
    ]),
    ("Fused against naive", [
        graph("Mean launch", "s", [(mean("attnd_kernel_duration_seconds", "kernel", f"SELECT, {FUSED}"), "fused {{kernel}}"),
                                   (mean("attnd_kernel_duration_seconds", "kernel", f"SELECT, {NAIVE}"), "naive {{kernel}}")],
              "Naive kernels run only for clients that compare. Alike only where both got the same requests, as under attnload compare.",
                    width=8),
        graph("HBM bytes of a launch", "bytes", [
            (ratio(rate("attnd_kernel_hbm_bytes_total", "kernel", f"SELECT, {FUSED}"),
                   rate("attnd_kernel_duration_seconds_count", "kernel", f"SELECT, {FUSED}")), "fused {{kernel}}"),
            (ratio(rate("attnd_kernel_hbm_bytes_total", "kernel", f"SELECT, {NAIVE}"),
                   rate("attnd_kernel_duration_seconds_count", "kernel", f"SELECT, {NAIVE}")), "naive {{kernel}}")],
              "The score matrix that naive writes and reads back is the difference.", width=8),
        graph("HBM throughput, fused and naive", "Bps", [
            (ratio(rate("attnd_kernel_hbm_bytes_total", "kernel", f"SELECT, {FUSED}"),
                   rate("attnd_kernel_busy_seconds_total", "kernel", f"SELECT, {FUSED}")), "fused {{kernel}}"),
            (ratio(rate("attnd_kernel_hbm_bytes_total", "kernel", f"SELECT, {NAIVE}"),
                   rate("attnd_kernel_busy_seconds_total", "kernel", f"SELECT, {NAIVE}")), "naive {{kernel}}")],
              "Naive may keep the memory as busy: it moves more bytes for the same answer.", width=8),
    ]),
]

CACHE = [
    ("Now", [
        stat("Taken", "percentunit", "instance_device:attnd_kv_cache_taken:ratio{SELECT}", "Used and reserved bytes of the pool.",
             legend="{{instance}} {{device}}", min=0, max=1, thresholds=levels(("green", None), ("yellow", 0.75), ("red", 0.9)), width=6),
        stat("Free", "bytes", 'sum by (instance) (attnd_kv_cache_bytes{SELECT, state="free"})', "Neither used nor promised.", width=6),
        stat("Sequences", "short", "sum by (instance) (attnd_sequences{SELECT})", "Live KV caches.", width=6),
        stat("Bytes of a sequence", "bytes", ratio('sum by (instance) (attnd_kv_cache_bytes{SELECT, state="used"})',
                                                   "sum by (instance) (attnd_sequences{SELECT})"),
             "Used bytes over live sequences.", width=6),
    ]),
    ("Pool", [
        graph("Bytes", "bytes", [("sum by (device, state) (attnd_kv_cache_bytes{SELECT})", "{{device}} {{state}}")],
              "reserved: promised to sequences and not used yet.", stacked=True, width=12),
        graph("Pages", "short", [("sum by (device, state) (attnd_kv_cache_pages{SELECT})", "{{device}} {{state}}")],
              "shared pages belong to forks; free ones are counted in whole 2 MiB slabs.", stacked=True, width=12),
    ]),
    ("Idle sequences in host memory (--host_cache_bytes)", [
        graph("Host memory", "bytes", [("sum by (instance, state) (attnd_kv_cache_host_bytes{SELECT})", "{{instance}} {{state}}")],
              "Keys and values of sequences that were idle longest when the cache was full. Nothing where it is switched off.",
              stacked=True, width=12),
        graph("Moves", "Bps", [(rate("attnd_kv_cache_moved_bytes_total", "direction"), "{{direction}}")],
              "Much in both directions: more sequences are active than the cache holds.", width=12),
    ]),
    ("Sequences and leases", [
        graph("Live sequences", "short", [("sum by (state) (attnd_sequences{SELECT})", "{{state}}")],
              "active ones have a step waiting or running.", stacked=True),
        graph("Endings", "ops", [(rate("attnd_sequences_ended_total", "reason"), "{{reason}}")],
              "expired: the lease ran out, its client went away or forgot to renew. The server evicts none."),
        graph("Leases", "ops", [(rate("attnd_requests_total", "method", 'SELECT, method="RenewSequences"'), "renewals asked"),
                                (rate("attnd_sequences_ended_total", "reason", 'SELECT, reason="expired"'), "leases run out")],
              "Steps renew as well and are not counted here."),
        graph("Created, forked, cut, deleted", "ops", [
            (rate("attnd_requests_total", "method", 'SELECT, code="OK", method=~"CreateSequence|ForkSequence|TruncateSequences|DeleteSequences"'), "{{method}}")],
              "Calls answered OK.", width=12),
        graph("Refused for want of room", "reqps", [(rate("attnd_rejected_total", "reason", 'SELECT, reason=~"cache_full|quota"'),
              "{{reason}}")],
              "cache_full: no page could be promised; quota: the tenant's share is used up.", width=12),
    ]),
]

DEVICE = [
    ("Progress", [
        stat("Since the last completion", "s", "time() - max by (instance, device) (attnd_last_kernel_completion_timestamp_seconds{SELECT})",
             "Long and with batches running: the device is stuck. Long and idle: nobody asked.", legend="{{instance}} {{device}}", width=6),
        stat("Batches running", "short", "attnd_running_batches{SELECT}", "Handed to the device and not completed.", width=6),
        stat("Faults", "short", "attnd_device_faults_total{SELECT}", "Since the start; after one the process ends with exit code 3.",
             thresholds=levels(("green", None), ("red", 1)), width=6),
        stat("Busy", "percentunit", "sum by (instance, device) (instance_kernel:attnd_kernel_busy:ratio_rate5m{SELECT})",
             "Share of the last five minutes spent in kernels.", legend="{{instance}} {{device}}", min=0, max=1, width=6),
    ]),
    ("Work", [
        graph("Busy share", "percentunit", [(rate("attnd_kernel_busy_seconds_total", "instance, device"), "{{instance}} {{device}}")],
              "Time in kernels over wall time."),
        graph("Memory traffic", "Bps", [(rate("attnd_kernel_hbm_bytes_total", "device, direction"), "{{device}} {{direction}}")],
              "Modelled bytes of all kernels over wall time.", stacked=True),
        graph("Bandwidth ceilings", "Bps", [("max by (device, kind) (attnd_device_hbm_bandwidth_bytes_per_second{SELECT})",
              "{{device}} {{kind}}")],
              "Measured at start, and from the data sheet where it is known."),
        graph("Copies to and from the device", "s", [
            (quantile(0.99, "attnd_stage_duration_seconds", "stage", 'SELECT, stage=~"host_to_device|device_to_host"'), "{{stage}} p99"),
            (mean("attnd_stage_duration_seconds", "stage", 'SELECT, stage=~"host_to_device|device_to_host"'), "{{stage}} mean")],
              "What a batch spends on copies.", width=12),
        graph("Batches in flight", "short", [("sum by (instance) (attnd_running_batches{SELECT})", "{{instance}}")],
              "More than one: copies overlap with kernels.", width=12),
    ]),
    ("Hardware (NVML, where the driver offers it)", [
        graph("Memory", "bytes", [("sum by (device, state) (attnd_device_memory_bytes{SELECT})", "{{device}} {{state}}")],
              "Of the whole device, other processes included.", stacked=True),
        graph("Utilisation", "percentunit", [("max by (device, unit) (attnd_device_utilization_ratio{SELECT})", "{{device}} {{unit}}")],
              "Time in which a kernel or a memory access was under way, as the driver counts it.", max=1),
        graph("Clocks", "hertz", [("max by (device, clock) (attnd_device_clock_hertz{SELECT})", "{{device}} {{clock}}")],
              "A clock that sinks under load tells of a power or temperature limit."),
        graph("Power", "watt", [("max by (device) (attnd_device_power_watts{SELECT})", "{{device}}")], "Drawn now.", width=12),
        graph("Temperature", "celsius", [("max by (device) (attnd_device_temperature_celsius{SELECT})", "{{device}}")], "Of the chip.",
              width=12),
    ]),
]

PAGES = {"service": SERVICE, "kernels": KERNEL_PANELS, "cache": CACHE, "device": DEVICE}


def variable(name, label, metric, key, *, several):
    query = f'label_values({metric}, {key})'
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query,
            "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "includeAll": several, "multi": several,
            **({"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}} if several else {})}


def variables(page):
    found = [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "includeAll": False,
          "multi": False},
             variable("job", "Job", "attnd_build_info", "job", several=False),
             variable("instance", "Server", 'attnd_build_info{job="$job"}', "instance", several=True)]
    if page == "kernels":
        found.append(variable("kernel", "Kernel", f"attnd_kernel_busy_seconds_total{{{SELECT}}}", "kernel", several=True))
    return found


def lay_out(rows):
    """Panels with places: rows of at most WIDTH columns below a heading each."""
    placed, y = [], 0
    for title, panels in rows:
        placed.append({"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        y, x, height = y + 1, 0, 0
        for each in panels:
            width, tall = each["width"], each["height"]
            if x + width > WIDTH:
                x, y, height = 0, y + height, 0
            placed.append({key: value for key, value in each.items() if key not in ("width", "height")} |
                          {"gridPos": {"x": x, "y": y, "w": width, "h": tall}})
            x, height = x + width, max(height, tall)
        y += height
    for number, each in enumerate(placed, 1):
        each["id"] = number
    return placed


def dashboard(page):
    links = [{"type": "link", "title": TITLES[other], "url": f"/d/attnd-{other}", "icon": "dashboard", "includeVars": True,
          "keepTime": True,
              "targetBlank": False, "asDropdown": False, "tags": []} for other in PAGES if other != page]
    return {"uid": f"attnd-{page}", "title": f"attnd {TITLES[page]}", "tags": ["attnd"], "schemaVersion": 38, "version": 1,
          "editable": False,
            "graphTooltip": 1, "timezone": "browser", "refresh": "10s", "time": {"from": "now-30m", "to": "now"},
            "links": links, "templating": {"list": variables(page)}, "annotations": {"list": []}, "panels": lay_out(PAGES[page])}


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print(__doc__, file=sys.stderr)
        return 2
    stale = 0
    for page in PAGES:
        file = FOLDER / f"{page}.json"
        text = json.dumps(dashboard(page), indent=1, ensure_ascii=False) + "\n"
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"{file.name} differs from make_dashboards.py; run it", file=sys.stderr)
        else:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file.name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
