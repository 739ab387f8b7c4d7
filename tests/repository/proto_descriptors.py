"""Reads a binary FileDescriptorSet without protobuf: just enough of the wire format and of descriptor.proto.

The contract comes out as a flat dictionary from an element's full name to what a client depends on,
for example "attnd.v1.Tensor.shape" -> "field 2 repeated int64".
"""

TYPES = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string",
         10: "group", 11: "message", 12: "bytes", 13: "uint32", 14: "enum", 15: "sfixed32", 16: "sfixed64", 17: "sint32",
         18: "sint64"}
REPEATED = 3


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """All (number, value) pairs of a message; value is an int or bytes."""
    at, found = 0, []
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
        elif wire_type == 2:
            size, at = _varint(data, at)
            value, at = data[at:at + size], at + size
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
            value, at = int.from_bytes(data[at:at + size], "little"), at + size
        else:
            raise ValueError(f"wire type {wire_type} at byte {at}")
        if at > len(data):
            raise ValueError("message ends inside a field")
        found.append((number, value))
    return found


def _all(message, number):
    return [value for key, value in message if key == number]


def _one(message, number, default):
    values = _all(message, number)
    return values[-1] if values else default


def _text(message, number):
    return _one(message, number, b"").decode()


def _add_enum(out, scope, data):
    enum = fields(data)
    name = f"{scope}.{_text(enum, 1)}"
    out[name] = "enum"
    for value in map(fields, _all(enum, 2)):
        number = _one(value, 2, 0)
        out[f"{name}.{_text(value, 1)}"] = f"value {number - (1 << 64) if number >> 63 else number}"


def _add_message(out, scope, data):
    message = fields(data)
    name = f"{scope}.{_text(message, 1)}"
    out[name] = "message"
    oneofs = [_text(fields(oneof), 1) for oneof in _all(message, 8)]
    for field in map(fields, _all(message, 2)):
        words = [f"field {_one(field, 3, 0)}"]
        if _one(field, 4, 0) == REPEATED:
            words.append("repeated")
        if _one(field, 17, 0):
            words.append("optional")
        elif _all(field, 9):
            words.append(f"oneof {oneofs[_one(field, 9, 0)]}")
        words.append(_text(field, 6).lstrip(".") or TYPES[_one(field, 5, 0)])
        out[f"{name}.{_text(field, 1)}"] = " ".join(words)
    for nested in _all(message, 3):
        _add_message(out, name, nested)
    for enum in _all(message, 4):
        _add_enum(out, name, enum)


def contract(descriptor_set, package):
    """The elements of `package` in a serialised FileDescriptorSet."""
    out = {}
    for file in map(fields, _all(fields(descriptor_set), 1)):
        if _text(file, 2) != package:
            continue
        for message in _all(file, 4):
            _add_message(out, package, message)
        for enum in _all(file, 5):
            _add_enum(out, package, enum)
        for service in map(fields, _all(file, 6)):
            name = f"{package}.{_text(service, 1)}"
            out[name] = "service"
            for method in map(fields, _all(service, 2)):
                request = ("stream " if _one(method, 5, 0) else "") + _text(method, 2).lstrip(".")
                reply = ("stream " if _one(method, 6, 0) else "") + _text(method, 3).lstrip(".")
                out[f"{name}.{_text(method, 1)}"] = f"rpc ({request}) returns ({reply})"
    return out
