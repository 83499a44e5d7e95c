// Gradient of a cross entropy: dx = dloss · (exp(x - lse) - hot - level), hot = 1 - s at the row's label alone and
// level = s / n with smoothing s; x lies in the middle of (outer, n, inner).
// One invocation makes {{ "four neighbours along n (inner is 1)" if form == "classes" else "four neighbours along inner" if form == "columns" else "one element" }}{{ ", where x lies" if in_place }}.
// An ignored row is picked to be 0, not multiplied: its dloss and x may be anything. A label outside 0..n is NaN.
{% if f16 %}
enable f16;
{% endif %}
{% set T = "f32" if form == "single" else "vec4<f32>" %}
{% set I = T|replace("f32", "i32") %}

struct Params {
    groups: u32,
    units: u32, // invocations that have work
    n: u32,
    inner: u32, // in what one invocation makes
    first: u32, // of labels, lse and dloss
    ignore: i32,
    zero: u32, // 0, unknown to the compiler: NaN is made with it
    hot: f32,
    level: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
{% for name, access, type in bindings %}
@group(0) @binding({{ loop.index }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% endfor %}

const SIZE: u32 = {{ size }}u;

{% include "shared/group.wgsl" %}

@compute @workgroup_size({{ size }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(wg, grid) * SIZE + lane;
    if i >= p.units {
        return;
    }
{% if form == "classes" %}
    let quads = p.n / 4u;
    let row = p.first + i / quads;
    let class_index = vec4<i32>(i32(i % quads * 4u)) + vec4(0, 1, 2, 3);
{% else %}
    let line = i / p.inner; // of (outer, n)
    let row = p.first + line / p.n * p.inner + i % p.inner;
    let class_index = {{ I }}(i32(line % p.n));
{% endif %}
    let label = {{ I }}(labels[row]);
    let hot = select({{ T }}(0.0), {{ T }}(p.hot), label == class_index);
    var d = {{ T }}(dloss[row]) * (exp({{ T }}({{ x }}[i]) - {{ T }}(sums[row])) - hot - p.level);
    let known = (label >= {{ I }}(0)) & (label < {{ I }}(i32(p.n)));
    d = select({{ T }}(bitcast<f32>(0x7fc00000u | p.zero)), d, known);
{% if ignore %}
    d = select(d, {{ T }}(0.0), label == {{ I }}(p.ignore));
{% endif %}
    dx[i] = {{ stored }}(d);
}
