{% if log %}
// Gradient of log-softmax over the middle of (outer, n, inner) from its result y: dx = dy - exp(y) · t, t the sum of dy.
{% else %}
// Gradient of softmax over the middle of (outer, n, inner) from its result y: dx = y · (dy - t), t the sum of dy · y.
{% endif %}
{% if per_row %}
// One invocation does one (outer, inner) column, neighbours along inner side by side.
{% else %}
// One workgroup does one row (inner is 1).
{% endif %}
// Order of t: {{ "" if per_row else "each lane " }}{{ "four neighbours at once, " if vec else "" }}blocks of 64 in turn, each summed in turn{{ "" if per_row else ", then lanes as merge_lanes has it" }}.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    rows: u32, // (outer, inner) pairs
    n: u32,
    inner: u32,
}
{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> y: array<{{ stored }}>;
@group(0) @binding(2) var<storage, read> dy: array<{{ stored }}>;
@group(0) @binding(3) var<storage, read_write> dx: array<{{ stored }}>;

{% include "shared/lanes.wgsl" %}

{% include "shared/group.wgsl" %}
{% if not per_row %}

alias Partial = f32;

{% include "shared/sum_lanes.wgsl" %}
{% endif %}

{% include "shared/main_row.wgsl" %}
{% if per_row %}
    let width = p.n;
    let base = row / p.inner * p.n * p.inner + row % p.inner;
    let step = p.inner;
{% else %}
    let width = p.n{{ " / 4u" if vec }};
    let base = row * width;
    let step = 1u;
{% endif %}
    var sum = 0.0;
    for (var start = 0u; start < width; start += BLOCK) {
        let end = min(start + BLOCK, width);
        var block = 0.0;
        for (var j = start + lane; j < end; j += LANES) {
            let at = base + j * step;
{% if log %}
            let v = {{ loaded }}(dy[at]);
{% else %}
            let v = {{ loaded }}(dy[at]) * {{ loaded }}(y[at]);
{% endif %}
            block += {{ "(v.x + v.y) + (v.z + v.w)" if vec else "v" }};
        }
        sum += block;
    }
{% if not per_row %}
    sum = merge_lanes(sum, lane);
{% endif %}
    for (var j = lane; j < width; j += LANES) {
        let at = base + j * step;
{% if log %}
        dx[at] = {{ stored }}({{ loaded }}(dy[at]) - exp({{ loaded }}(y[at])) * sum);
{% else %}
        dx[at] = {{ stored }}({{ loaded }}(y[at]) * ({{ loaded }}(dy[at]) - sum));
{% endif %}
    }
}
