{% set M = u.side * u.side // 4 %}
{% set blocks = width // u.side %}
{% set halves = u.halves | length %}
{# matrices below each other that a workgroup reads at once, and vec4s of a column of one #}
{% set at_once = threads // M %}
{% set fours = u.side // 4 %}
{# of those, neighbours in the result #}
{% set part = (u.side + 7) // 8 %}
{% set times = (blocks + at_once - 1) // at_once %}
// Weights of a stack of layers as the matrices that linear_stack_units.wgsl loads: of each layer, along its inner dimension
// and then along its outer one, matrices of {{ u.side }} × {{ u.side }} f16, each contiguous: {{ 4 * part }} inner elements of each column after the
// other, then the next {{ 4 * part }}.
//
// A workgroup makes a layer's matrices of {{ u.side }} columns; an invocation has four inner elements of one column at a time.
{% if scaled %}
// Each column is scaled by a power of two that brings its largest number to about 2^14; what undoes it is stored beside. A
// column that holds an infinity or a NaN becomes zeros, and what undoes its scale NaN.
{% endif %}
{% if split %}
// A matrix of the upper 11 bits of each number is followed by one of what is left.
{% endif %}
enable f16;

struct Params {
    groups: u32, // workgroups that have work
    w_offset: u32, // all in elements
    w_layer: u32,
    w_outer: u32,
    w_inner: u32,
}

{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> w: array<{{ scalar }}>;
@group(0) @binding(2) var<storage, read_write> matrices: array<vec4<f16>>;
{% if scaled %}
@group(0) @binding(3) var<storage, read_write> factors: array<f32>;
{% endif %}

{% include "shared/group.wgsl" %}
{% if scaled %}
{% include "shared/halves.wgsl" %}

// The largest magnitude that each invocation has met.
var<workgroup> largest: array<u32, {{ threads }}>;
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    if group >= p.groups {
        return;
    }
    let layer = group / {{ blocks }}u;
    let block = group % {{ blocks }}u;
    let column = lane % {{ M }}u / {{ fours }}u;
    let four = lane % {{ fours }}u;
    let at_w = p.w_offset + layer * p.w_layer + (block * {{ u.side }}u + column) * p.w_outer;
{% for i in range(times) %}
    let k{{ i }} = lane / {{ M }}u + {{ i * at_once }}u;
    var v{{ i }} = vec4<f32>(0.0);
    if k{{ i }} < {{ blocks }}u {
        let at = at_w + (k{{ i }} * {{ u.side }}u + four * 4u) * p.w_inner;
        v{{ i }} = vec4<f32>(vec4<{{ scalar }}>(w[at], w[at + p.w_inner], w[at + 2u * p.w_inner], w[at + 3u * p.w_inner]));
    }
{% endfor %}
{% if scaled %}
    var most = magnitude(v0);
{% for i in range(1, times) %}
    most = max(most, magnitude(v{{ i }}));
{% endfor %}
    largest[lane] = most;
    workgroupBarrier();
    for (var i = column * {{ fours }}u; i < {{ threads }}u; i += {{ M }}u) {
{% for f in range(fours) %}
        most = max(most, largest[i + {{ f }}u]);
{% endfor %}
    }
    let scale = row_scale(most);
    if lane < {{ M }}u && four == 0u {
        factors[layer * {{ width }}u + block * {{ u.side }}u + column] = row_factor(most);
    }
{% endif %}
{% for i in range(times) %}
    if k{{ i }} < {{ blocks }}u {
        let at = ((layer * {{ blocks }}u + k{{ i }}) * {{ blocks }}u + block) * {{ halves * M }}u
            + four / {{ part }}u * {{ u.side * part }}u + column * {{ part }}u + four % {{ part }}u;
        let v = {{ "scaled(v" ~ i ~ ", scale)" if scaled else "v" ~ i }};
{% if split %}
        let high = upper(v);
        matrices[at] = vec4<f16>(high);
        matrices[at + {{ M }}u] = vec4<f16>(v - high);
{% else %}
        matrices[at] = vec4<f16>(v);
{% endif %}
    }
{% endfor %}
}
