// {{ kind }} over the middle of (outer, n, inner), cut into `parts` slices of `slice` elements, one output a slice:
// (outer, parts, inner){{ "; the first NaN wins, else the first of the largest" if kind == "argmax" else "; any NaN gives NaN" if kind == "max" else "; of magnitudes, any NaN gives NaN" if kind == "absmax" else "" }}.
{% if per_row %}
// One invocation makes one output, neighbours along inner side by side.
{% else %}
// One workgroup makes one output; inner is 1.
{% endif %}
{% if kind in ["sum", "mean"] %}
// Order of sums: {{ "" if per_row else "each lane " }}{{ "four neighbours at once, " if vec else "" }}blocks of 64 in turn, each summed in turn{{ "" if per_row else ", then lanes as merge_lanes has it" }}.
{% elif kind == "absmax" %}
// Magnitudes are compared as integers, which order them as numbers do and put NaN above all.
{% else %}
// A lane starts from the slice's first element: to meet an element twice changes nothing, and an idle lane is harmless.
// NaN is told by its bits, since comparisons and max() may assume that there is none.
{% endif %}
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    rows: u32, // slices, of which each has an output
    n: u32,
    inner: u32,
    slice: u32,
    parts: u32,
    first: u32,
    count: f32,
}
{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> x: array<{{ stored }}>;
@group(0) @binding(2) var<storage, read_write> y: array<{{ result }}>;

{% include "shared/lanes.wgsl" %}

{% include "shared/group.wgsl" %}
{% if kind in ["max", "argmax"] %}

fn is_nan(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}
{% endif %}
{% if kind == "argmax" %}

struct Partial {
    value: f32,
    index: u32,
}

fn merge(a: Partial, b: Partial) -> Partial {
    let a_nan = is_nan(a.value);
    let b_nan = is_nan(b.value);
    var take = b.value > a.value;
    if a_nan != b_nan {
        take = b_nan;
    } else if a_nan || a.value == b.value {
        take = b.index < a.index;
    }
    if take {
        return b;
    }
    return a;
}
{% elif kind == "max" %}

alias Partial = f32;

fn merge(a: Partial, b: Partial) -> Partial {
    if is_nan(a) {
        return a;
    }
    if is_nan(b) {
        return b;
    }
    return max(a, b);
}
{% elif kind == "absmax" %}

alias Partial = u32;

fn merge(a: Partial, b: Partial) -> Partial {
    return max(a, b);
}

fn magnitude(v: f32) -> Partial {
    return bitcast<u32>(v) & 0x7fffffffu;
}
{% else %}
{% if kind == "mean" %}

// s / n with one correction, since division may be off by a few units in the last place and n / n must be 1.
fn divide(s: f32, n: f32) -> f32 {
    let q = s / n;
    if (bitcast<u32>(q) & 0x7f800000u) == 0x7f800000u {
        return q;
    }
    return q + fma(-q, n, s) / n;
}
{% endif %}
{% if not per_row %}

alias Partial = f32;

{% include "shared/sum_lanes.wgsl" %}
{% endif %}
{% endif %}
{% if kind in ["max", "absmax", "argmax"] and not per_row %}

{% include "shared/merge.wgsl" %}
{% endif %}

{% include "shared/main_row.wgsl" %}
    let slice = row / p.inner; // of (outer, parts)
    let low = slice % p.parts * p.slice;
    let high = min(low + p.slice, p.n);
    let base = slice / p.parts * p.n * p.inner + row % p.inner;
{% if kind in ["sum", "mean"] %}
    let stop = high{{ " / 4u" if vec else "" }};
    var all = 0.0;
    for (var start = low{{ " / 4u" if vec else "" }}; start < stop; start += BLOCK) {
        let end = min(start + BLOCK, stop);
        var block = 0.0;
        for (var j = start + lane; j < end; j += LANES) {
{% if vec %}
            let v = vec4<f32>(x[base / 4u + j]);
            block += (v.x + v.y) + (v.z + v.w);
{% else %}
            block += f32(x[base + j * p.inner]);
{% endif %}
        }
        all += block;
    }
{% elif kind == "absmax" %}
    var all = 0u;
    for (var j = low{{ " / 4u" if vec else "" }} + lane; j < high{{ " / 4u" if vec else "" }}; j += LANES) {
{% if vec %}
        let v = vec4<f32>(x[base / 4u + j]);
        all = max(all, max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w))));
{% else %}
        all = max(all, magnitude(f32(x[base + j * p.inner])));
{% endif %}
    }
{% elif kind == "max" %}
    var all = f32(x[base + low * p.inner]);
    for (var j = low + lane; j < high; j += LANES) {
        all = merge(all, f32(x[base + j * p.inner]));
    }
{% else %}
    var all = Partial(f32(x[base + low * p.inner]), low);
    for (var j = low + lane; j < high; j += LANES) {
        all = merge(all, Partial(f32(x[base + j * p.inner]), j));
    }
{% endif %}
{% if per_row %}
    y[p.first + row] = {{ value }};
{% else %}
    all = merge_lanes(all, lane);
    if lane == 0u {
        y[p.first + row] = {{ value }};
    }
{% endif %}
}
