{% if kind == "constant" %}
// Every element is {{ "the number" if elem == "f16" else "the word" }} whose bits are `value`.
{% elif kind == "arange" %}
// Element i is value + i.
{% else %}
// Element (i, j) of rows of `width` is 1, masked out, where j > i + diagonal, else 0.
{% endif %}
// One invocation writes one {{ "group of four words" if vec else "element" }}.
{% if elem == "f16" %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    count: u32,
    value: u32,
    width: u32,
    diagonal: u32,
}
{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read_write> y: array<{{ stored }}>;

const SIZE: u32 = {{ size }}u;

{% include "shared/group.wgsl" %}

{% include "shared/main.wgsl" %}
    let at = group * SIZE + index;
    if at >= p.count {
        return;
    }
{% if kind == "arange" %}
    y[at] = p.value + at;
{% elif kind == "causal_mask" %}
    y[at] = select(0u, 1u, i32(at % p.width) > i32(at / p.width) + bitcast<i32>(p.diagonal));
{% elif elem == "f16" %}
    y[at] = f16(bitcast<f32>(p.value));
{% elif vec %}
    y[at] = vec4(p.value);
{% else %}
    y[at] = p.value;
{% endif %}
}
