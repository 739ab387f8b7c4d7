"""The include rules of the tree: which folder may see which, and the order of stations that a request passes.

A request falls through the stations of server/ from top to bottom; its answer comes back through one
completion. A file includes files of its own station or of a lower one, never of a higher one. Values that
several stations hand to each other stand at the bottom.
"""

import pathlib
import re

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SOURCES = ("*.cc", "*.h", "*.cu", "*.cuh")

# What of kernels/ the rest of the tree may include.
KERNELS_API = {"kernels/attention_kernels.h", "kernels/attention_params.h", "kernels/cuda_kernels.h", "kernels/naive_library.h"}

# Folder -> folders that it may include (its own is always allowed). tests/ may include everything.
FOLDERS = {
    "kernels": set(),
    "server": {"kernels"},
    "client": {"kernels"},
    "loadtest": {"client", "kernels"},
}

# Not to be seen in kernels/: link rules do not catch it, since installed headers are visible to every target.
FOREIGN_TO_KERNELS = re.compile(r"^(grpc|grpcpp|google|absl|prometheus|spdlog|fmt|attnd)/|\.pb\.h$")

# server/, top to bottom, by file stem.
STATIONS = [
    ("start", ["main", "attnd_process"]),
    ("assembly", ["attnd_server", "grpc_listener"]),
    ("rpc", ["attention_service", "attention_call", "decode_stream", "sequence_calls", "control_call", "inline_reactor", "service_state", "spare_poller",
             "server_info", "health_service", "message_bytes", "reflection_service", "open_streams"]),
    ("operation", ["admin_server", "http_connection", "http_lobby", "status_page", "status_board", "status_report", "status_history", "status_totals",
                   "connection_acceptor", "open_connections", "watchdog", "quiet_time", "freed_memory", "allocator_settings", "request_log", "library_logs"]),
    ("wire", ["request_validation", "tensor_validation", "option_validation", "sequence_validation", "unknown_fields",
              "attention_wire", "wire_types", "reply_encoder", "wire_reader", "status_conversion"]),
    ("scheduling", ["scheduler", "scheduler_impl", "request_admission", "batch_launch", "completion", "outbox", "ready_queue",
                    "sequence_operations", "work_item"]),
    ("policy", ["batch_policy", "admission", "arrival_places", "sequence_store", "sequence_leases", "sequence_pages", "sequence_shape", "sequence_state",
                "host_cache"]),
    ("backend", ["cpu_backend", "cpu_staging", "cpu_self_test", "cpu_workspace",
                 "cuda_device", "no_cuda_device", "cuda_backend", "cuda_self_test", "cuda_flight", "cuda_staging", "cuda_layout",
                 "cuda_memory", "page_copy"]),
    ("backend interface", ["attention_backend"]),
    ("memory", ["page_pool", "batch"]),
    ("values", ["attention_request", "sequence_types", "error_status", "health_state", "clock", "mutex", "logging",
                "device_selection", "device_report", "device_sensors", "device_sampler", "nvml_library", "cuda_memory_budget",
                "build_info", "metrics", "metric_families", "exposition_text", "kernel_series", "striped_counter", "striped_histogram",
                "server_config", "server_flags", "config_file", "config_help", "flag_value", "machine_resources", "listen_address", "listening_sockets", "bind_failure"]),
]

# The one station whose files may include generated service code.
SERVICE_STATION = "rpc"
# From here down no file knows gRPC: the engine is tested, and could be used, without it.
FIRST_STATION_WITHOUT_RPC = "scheduling"
RPC_HEADER = re.compile(r"^(grpc|grpcpp)/|\.grpc\.pb\.h$")
# Backends are chosen in one place; everything else knows only the interface.
BACKEND_USERS = {"start", "assembly", "backend"}


def _station_of(stem):
    for index, (name, stems) in enumerate(STATIONS):
        if stem in stems:
            return index, name
    return None


def _station_index(station):
    return [name for name, _ in STATIONS].index(station)


def _folder_fault(path, include):
    folder, target = path.split("/")[0], include.split("/")[0]
    if target == "tests":
        return "only tests may include tests/"
    if target in FOLDERS and target != folder:
        if target not in FOLDERS[folder]:
            return f"{folder}/ must not include {target}/"
        if target == "kernels" and include not in KERNELS_API:
            return "outside kernels/ only its public headers may be included"
    if folder == "kernels" and FOREIGN_TO_KERNELS.search(include):
        return "kernels/ knows no rpc, protobuf, Abseil, logging or metrics library"
    return None


def _station_fault(path, include):
    here = _station_of(pathlib.PurePath(path).stem)
    if here is None:
        return None  # reported once, by unplaced_files()
    if include.endswith(".grpc.pb.h") and here[1] not in (SERVICE_STATION, "assembly"):
        return f"generated services belong to the station '{SERVICE_STATION}'"
    if here[0] >= _station_index(FIRST_STATION_WITHOUT_RPC) and RPC_HEADER.search(include):
        return f"station '{here[1]}' knows no gRPC"
    there = _station_of(pathlib.PurePath(include).stem) if include.startswith("server/") else None
    if there is None:
        return None
    if there[0] < here[0]:
        return f"upward include: station '{here[1]}' is below '{there[1]}'"
    if there[1] == "backend" and here[1] not in BACKEND_USERS:
        return "only the assembly knows which backend there is; include attention_backend.h"
    return None


def _sources(root):
    for folder in FOLDERS:
        for pattern in SOURCES:
            yield from sorted((root / folder).rglob(pattern))


def include_faults(root):
    """Every forbidden include below `root`, as "path:line: include: why"."""
    faults = []
    for file in _sources(root):
        path = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            include = match.group(2)
            fault = "includes are relative to the root of the tree" if ".." in include else _folder_fault(path, include)
            if fault is None and path.startswith("server/"):
                fault = _station_fault(path, include)
            if fault is not None:
                faults.append(f"{path}:{text.count(chr(10), 0, match.start(1)) + 1}: {include}: {fault}")
    return faults


def unplaced_files(root):
    """Files of server/ that no station names."""
    return [file.relative_to(root).as_posix() for file in _sources(root)
            if file.relative_to(root).as_posix().startswith("server/") and _station_of(file.stem) is None]
