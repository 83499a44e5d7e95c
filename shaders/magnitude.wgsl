// y[g] = the largest magnitude of what workgroup g reads of {{ count }} dense tensors; any NaN gives NaN.
//
// Each workgroup goes through all tensors: its invocations take four neighbours each, then those a whole grid further.
// Magnitudes are compared as integers, which order them as numbers do and put NaN above all.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
{% for i in range(count) %}
    n{{ i }}: u32, // elements
{% endfor %}
}
{% include "shared/params.wgsl" %}
{% for i in range(count) %}
@group(0) @binding({{ i + 1 }}) var<storage, read> x{{ i }}: array<vec4<{{ stored }}>>;
{% endfor %}
@group(0) @binding({{ count + 1 }}) var<storage, read_write> y: array<f32>;

const SIZE: u32 = {{ size }}u;

alias Partial = u32;

fn merge(a: Partial, b: Partial) -> Partial {
    return max(a, b);
}

{% include "shared/group.wgsl" %}

{% include "shared/merge.wgsl" %}

fn magnitudes(v: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
}

{% include "shared/main.wgsl" %}
    let first = group * SIZE + index;
    let step = p.groups * SIZE;
    var all = vec4<u32>(0u);
{% for i in range(count) %}
    let whole{{ i }} = p.n{{ i }} / 4u;
    for (var j = first; j < whole{{ i }}; j += 4u * step) {
        // four reads at once; those past the end repeat the last one
{% for k in range(4) %}
        let v{{ k }} = magnitudes(vec4<f32>(x{{ i }}[min(j + {{ k }}u * step, whole{{ i }} - 1u)]));
{% endfor %}
        all = max(max(all, max(v0, v1)), max(v2, v3));
    }
    if first == 0u && p.n{{ i }} % 4u > 0u {
        // what follows the last element is padding
        let rest = vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(p.n{{ i }} % 4u);
        all = max(all, select(vec4<u32>(0u), magnitudes(vec4<f32>(x{{ i }}[whole{{ i }}])), rest));
    }
{% endfor %}
    let largest = merge_lanes(max(max(all.x, all.y), max(all.z, all.w)), index);
    if index == 0u {
        y[group] = bitcast<f32>(largest);
    }
}
