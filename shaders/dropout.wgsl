// y = x · z with z of each element 0 with probability p, else 1 / (1 - p).
//
// An invocation makes four neighbouring elements from the four words of one group. The product is f32.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32, // workgroups that have work
    count: u32, // elements
    first: u32, // group of four that the first element is in
    site: u32,
    threshold: u32, // words below this drop
    keep: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
{% if not in_place %}
@group(0) @binding(1) var<storage, read> x: array<{{ stored }}>;
{% endif %}
@group(0) @binding({{ 1 if in_place else 2 }}) var<storage, read> counter: array<u32>;
@group(0) @binding({{ 2 if in_place else 3 }}) var<storage, read_write> y: array<{{ stored }}>;

{% include "shared/group.wgsl" %}
{% include "shared/philox.wgsl" %}
{% set from = "y" if in_place else "x" %}

@compute @workgroup_size({{ size }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(wg, n) * {{ size }}u + lane;
    if i >= (p.count + 3u) / 4u {
        return;
    }
    let z = factors(p.first + i, vec4<u32>(counter[0], counter[1], counter[2], p.site));
{% if vec %}
    y[i] = vec4<{{ scalar }}>(vec4<f32>({{ from }}[i]) * z);
{% else %}
    let at = i * 4u;
{% for c in range(4) %}
    if at + {{ c }}u < p.count { y[at + {{ c }}u] = {{ scalar }}(f32({{ from }}[at + {{ c }}u]) * z.{{ "xyzw"[c] }}); }
{% endfor %}
{% endif %}
}
