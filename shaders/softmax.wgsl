// Softmax over the middle of (outer, n, inner): y = exp(x - m) / s, m the largest x, s the sum of exp(x - m);
// its logarithm is (x - m) - log s.
{% if per_row %}
// One invocation does one (outer, inner) column, neighbours along inner side by side.
// Order of s: blocks of 64 in turn, each summed in turn.
{% else %}
// One workgroup does one row (inner is 1); m and s are found in one pass, s is rescaled when m grows.
// Order of s: each lane {{ "four neighbours at a time, every 4 SIZE" if vec else "every SIZE-th element" }}, then lanes as merge_lanes has it.
{% endif %}
// m starts from the lowest finite number, so that -inf elements give exp(-inf) = 0 and idle lanes merge to nothing.
// A NaN or +inf makes s NaN and with it the row; a row of -inf alone has s = 0 and gives 0/0 = NaN.
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
@group(0) @binding(1) var<storage, read> x: array<{{ stored }}>;
@group(0) @binding(2) var<storage, read_write> y: array<{{ stored }}>;

const SIZE: u32 = {{ size }}u;
const LOWEST: f32 = -0x1.fffffep+127f;

{% include "shared/group.wgsl" %}
{% if per_row %}

const BLOCK: u32 = 64u;

{% include "shared/main_row.wgsl" %}
    let base = row / p.inner * p.n * p.inner + row % p.inner;
    var m = LOWEST;
    for (var j = 0u; j < p.n; j++) {
        m = max(m, f32(x[base + j * p.inner]));
    }
    var s = 0.0;
    for (var start = 0u; start < p.n; start += BLOCK) {
        let end = min(start + BLOCK, p.n);
        var block = 0.0;
        for (var j = start; j < end; j++) {
            block += exp(f32(x[base + j * p.inner]) - m);
        }
        s += block;
    }
{% if log %}
    let log_s = log(s);
{% else %}
    let inverse = 1.0 / s;
{% endif %}
    for (var j = 0u; j < p.n; j++) {
        let at = base + j * p.inner;
{% if log %}
        y[at] = {{ scalar }}((f32(x[at]) - m) - log_s);
{% else %}
        y[at] = {{ scalar }}(exp(f32(x[at]) - m) * inverse);
{% endif %}
    }
}
{% else %}

// (m, s) of some elements
alias Partial = vec2<f32>;

fn merge(a: Partial, b: Partial) -> Partial {
    let m = max(a.x, b.x);
    return vec2(m, a.y * exp(a.x - m) + b.y * exp(b.x - m));
}

{% include "shared/merge.wgsl" %}

{% include "shared/main_row.wgsl" %}
    let width = p.n{{ " / 4u" if vec }};
    let base = row * width;
    var own = Partial(LOWEST, 0.0);
    for (var j = lane; j < width; j += SIZE) {
        let v = {{ loaded }}(x[base + j]);
{% if vec %}
        let m = max(own.x, max(max(v.x, v.y), max(v.z, v.w)));
        let e = exp(v - m);
        own = vec2(m, own.y * exp(own.x - m) + ((e.x + e.y) + (e.z + e.w)));
{% else %}
        let m = max(own.x, v);
        own = vec2(m, own.y * exp(own.x - m) + exp(v - m));
{% endif %}
    }
    let all = merge_lanes(own, lane);
{% if log %}
    let log_s = log(all.y);
{% else %}
    let inverse = 1.0 / all.y;
{% endif %}
    for (var j = lane; j < width; j += SIZE) {
        let v = {{ loaded }}(x[base + j]);
{% if log %}
        y[base + j] = {{ stored }}((v - all.x) - log_s);
{% else %}
        y[base + j] = {{ stored }}(exp(v - all.x) * inverse);
{% endif %}
    }
}
{% endif %}
