// The rate of f32 fused multiply-adds: every invocation runs {{ chains }} independent chains of vec4s for {{ rounds }} rounds of {{ unroll }}.

struct Params {
    groups: u32,
    zero: u32, // 0, unknown to the compiler, so that nothing folds
    pad0: u32,
    pad1: u32,
}

{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

{% include "shared/group.wgsl" %}

@compute @workgroup_size({{ workgroup }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    if group >= p.groups {
        return;
    }
    let a = vec4<f32>(0.999 + f32(p.zero));
    let b = vec4<f32>(0.001 + f32(lane) * 1e-6);
{% for c in range(chains) %}
    var x{{ c }} = b * {{ c + 1 }}.0;
{% endfor %}
    for (var i = 0u; i < {{ rounds }}u; i += 1u) {
{% for u in range(unroll) %}
{% for c in range(chains) %}
        x{{ c }} = fma(x{{ c }}, a, b);
{% endfor %}
{% endfor %}
    }
    var sum = vec4<f32>(0.0);
{% for c in range(chains) %}
    sum += x{{ c }};
{% endfor %}
    out[group * {{ workgroup }}u + lane] = sum.x + sum.y + sum.z + sum.w;
}
