"""From Kubernetes objects to the model: the only place that knows the raw field names.

Data flow: bytes or YAML (app/kube) → a wire Struct (`kube`, `longhorn`; msgspec checks the types and names the field) →
a frozen model value. `registry.CONVERTERS` lists every kind that is read. It lives in the core because recorded
decisions (`scheduler_core.longhorn.vectors`) are written in the same fields; it is pure: values in, values out.
"""
