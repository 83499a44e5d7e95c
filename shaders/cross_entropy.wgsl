// Cross entropy of the rows x in the middle of (outer, n, inner) with their labels: lse = m + log s, m the largest x,
// s the sum of exp(x - m), and loss = lse - x[label]{{ ", or (1 - s)·(lse - x[label]) + s·(lse - mean x) with smoothing s" if smoothing }}.
{% if columns %}
// {{ lines }} invocation{{ "s do" if lines > 1 else " does" }} one (outer, inner) column, neighbours along inner side by side.
{% else %}
// One workgroup does one row (inner is 1).
{% endif %}
// One pass: s is rescaled when m grows. Order of sums: {{ "each line " if lines > 1 else "" if columns else "each lane " }}{{ "four neighbours at once, " if vec else "" }}blocks of 64 in turn, each in turn{{ ", then lines in turn" if lines > 1 else "" if columns else ", then lanes as merge_lanes has it" }}.
// m starts from the lowest finite number, so that -inf elements give exp(-inf) = 0 and idle lanes merge to nothing.
// A NaN or +inf makes s NaN and with it the row, and a row of -inf alone is NaN.
{% if smoothing %}
// The mean is taken of x - x[0], so that it does not lose what m and log s hold.
{% endif %}
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    columns: u32,
    n: u32,
    inner: u32,
    first: u32, // of labels, loss and lse
    ignore: i32,
    zero: u32, // 0, unknown to the compiler: NaN is made with it
    smoothing: f32,
}
{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> x: array<{{ stored }}>;
@group(0) @binding(2) var<storage, read> labels: array<i32>;
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;

const SIZE: u32 = {{ size }}u;
const LANES: u32 = {{ lines if columns else size }}u;
const BLOCK: u32 = 64u * LANES;
const LOWEST: f32 = -0x1.fffffep+127f;

// m, s{{ " and the sum of x - x[0]" if smoothing }} of some elements
alias Partial = vec{{ 3 if smoothing else 2 }}<f32>;
const NOTHING: Partial = Partial(LOWEST, 0.0{{ ", 0.0" if smoothing }});

{% include "shared/group.wgsl" %}

fn merge(a: Partial, b: Partial) -> Partial {
    let m = max(a.x, b.x);
    return Partial(m, a.y * exp(a.x - m) + b.y * exp(b.x - m){{ ", a.z + b.z" if smoothing }});
}

// One more {{ "four elements" if vec else "element" }}.
fn take(own: Partial, v: {{ loaded }}, pivot: f32) -> Partial {
{% if vec %}
    let m = max(own.x, max(max(v.x, v.y), max(v.z, v.w)));
    let e = exp(v - m);
    let d = v - pivot;
    return Partial(m, own.y * exp(own.x - m) + ((e.x + e.y) + (e.z + e.w)){{ ", own.z + ((d.x + d.y) + (d.z + d.w))" if smoothing }});
{% else %}
    let m = max(own.x, v);
    return Partial(m, own.y * exp(own.x - m) + exp(v - m){{ ", own.z + (v - pivot)" if smoothing }});
{% endif %}
}

fn finish(column: u32, base: u32, all: Partial, pivot: f32) {
    let nan = bitcast<f32>(0x7fc00000u | p.zero);
    let log_s = select(log(all.y), nan, all.y == 0.0);
    sums[p.first + column] = all.x + log_s;
    let label = labels[p.first + column];
    var loss = nan;
    if label >= 0 && u32(label) < p.n {
{% if vec %}
        let own = f32(x[base + u32(label) / 4u][u32(label) % 4u]);
{% else %}
        let own = f32(x[base + u32(label) * p.inner]);
{% endif %}
        // not lse - own, which rounds where both are large
        loss = (all.x - own) + log_s;
{% if smoothing %}
        let level = ((all.x - pivot) - all.z / f32(p.n)) + log_s;
        loss = (1.0 - p.smoothing) * loss + p.smoothing * level;
{% endif %}
    }
{% if ignore %}
    if label == p.ignore {
        loss = 0.0;
    }
{% endif %}
    losses[p.first + column] = loss;
}
{% if not columns %}

{% include "shared/merge.wgsl" %}
{% elif lines > 1 %}

const COLUMNS: u32 = SIZE / LANES;
var<workgroup> tile: array<Partial, {{ size }}>;
{% endif %}

{% include "shared/main.wgsl" %}
{% if not columns %}
    let column = group;
    let lane = index;
    let width = p.n{{ " / 4u" if vec }};
    let base = column * width;
    let step = 1u;
    let live = true;
{% else %}
{% if lines > 1 %}
    let column = group * COLUMNS + index % COLUMNS;
    let lane = index / COLUMNS;
{% else %}
    let column = group * SIZE + index;
    let lane = 0u;
{% endif %}
    let live = column < p.columns;
    let width = select(0u, p.n, live);
    let base = select(0u, column / p.inner * p.n * p.inner + column % p.inner, live);
    let step = p.inner;
{% endif %}
{% if smoothing %}
    // the elements themselves where the first is infinite
    let x0 = f32(x[base]{{ ".x" if vec }});
    let pivot = select(x0, 0.0, abs(x0) > -LOWEST);
{% else %}
    let pivot = 0.0;
{% endif %}
    var all = NOTHING;
    for (var start = 0u; start < width; start += BLOCK) {
        let end = min(start + BLOCK, width);
        var block = NOTHING;
        for (var j = start + lane; j < end; j += LANES) {
            block = take(block, {{ loaded }}(x[base + j * step]), pivot);
        }
        all = merge(all, block);
    }
{% if not columns %}
    all = merge_lanes(all, lane);
{% elif lines > 1 %}
    tile[index] = all;
    workgroupBarrier();
    if lane == 0u {
        for (var k = 1u; k < LANES; k++) {
            all = merge(all, tile[index + k * COLUMNS]);
        }
    }
{% endif %}
    if live && lane == 0u {
        finish(column, base, all, pivot);
    }
}
