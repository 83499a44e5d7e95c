// out[i] = chain(in0[..], in1[..], ...): element-wise functions, casts and strided copies.
//
// An invocation makes {{ "four neighbouring elements" if width == 4 else "one element" }} of the output; inputs are
// strided views, stride 0 repeats. Floats are computed in f32, integers in their own type.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32, // workgroups that have work
    count: u32, // invocations that have work
    zero: u32, // 0, unknown to the compiler: numbers that WGSL has no literal for are made with it
    out_offset: u32,
{% for d in range(rank) %}
    dim{{ d }}: u32,
    out_stride{{ d }}: u32,
{% endfor %}
{% for input in inputs %}
    offset{{ loop.index0 }}: u32,
{% set k = loop.index0 %}
{% for d in range(rank) %}
    stride{{ k }}_{{ d }}: u32,
{% endfor %}
{% endfor %}
}

{% include "shared/params.wgsl" %}
{% for input in inputs if not input.in_place %}
@group(0) @binding({{ input.binding }}) var<storage, read> in{{ input.index }}: array<{{ input.storage }}>;
{% endfor %}
@group(0) @binding({{ out_binding }}) var<storage, read_write> out: array<{{ out_storage }}>;

{% include "shared/group.wgsl" %}
{% if float %}
{% include "shared/chain.wgsl" %}
{% elif steps %}
{% include "shared/integer.wgsl" %}
{% endif %}

@compute @workgroup_size({{ workgroup }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(wg, n) * {{ workgroup }}u + lane;
    if i >= p.count {
        return;
    }
    // coordinates, innermost first; the last counts groups of {{ width }}
    var rest = i;
{% for d in range(rank)|reverse %}
{% if loop.last %}
    let c{{ d }} = rest;
{% else %}
    let c{{ d }} = rest % p.dim{{ d }};
    rest = rest / p.dim{{ d }};
{% endif %}
{% endfor %}
    let at_out = p.out_offset{% for d in range(rank) %} + c{{ d }} * p.out_stride{{ d }}{% endfor %};
{% for input in inputs %}
{% set k = loop.index0 %}
    let at{{ k }} = p.offset{{ k }}{% for d in range(rank) %} + c{{ d }} * p.stride{{ k }}_{{ d }}{% endfor %};
    let i{{ k }} = {{ input.load }};
{% endfor %}
{% for step in steps %}
    let t{{ loop.index0 }} = {{ step }};
{% endfor %}
    out[at_out] = {{ store }};
}
