{# What linear_stack.wgsl and linear_stack_units.wgsl share: parameters and bindings, in vec4s. Only units have weights that
are packed, two f16 numbers a word, and factors that undo their scales. #}
struct Params {
    groups: u32, // workgroups that have work
    rows: u32,
    layers: u32,
    zero: u32, // 0, unknown to the compiler: numbers that WGSL has no literal for are made with it
    x_offset: u32, // all offsets in vec4s
{% if u is not defined %}
    w_offset: u32,
{% endif %}
{% if bias %}
    b_offset: u32,
{% endif %}
{% if backward %}
    kept_offset: u32,
    y_offset: u32,
{% endif %}
}

{% include "shared/params.wgsl" %}
{% for name, access in bindings %}
{% set type = "vec4<f32>" if name == "factors" else "vec4<u32>" if name == "w" and u is defined else "vec4<" ~ scalar ~ ">" %}
@group(0) @binding({{ loop.index }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% endfor %}

{% include "shared/group.wgsl" %}
{% include "shared/chain.wgsl" %}
