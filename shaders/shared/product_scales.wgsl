{% from "shared/units.wgsl" import put, read %}
{% from "shared/product_units.wgsl" import stride %}
{#
Scales of f32 operands in matmul_units.wgsl: in come the largest exponents of A's rows and B's columns, as exponents.wgsl
has found them; out go powers of two that rows and columns are multiplied with when they are staged, and what takes them
back from sums.

`side` and `t` are those of shared/product_units.wgsl. A power is kept as its biased exponent: in the padding of the row
that it is of, which holds it exactly as f16, or, of an operand that does not lie along k, in an array of its own.
#}
{% macro keep_power(side, i, value, u) %}
{% if side.along_k %}
{{ put(side.name ~ "_hi", i ~ " * " ~ stride(side) ~ "u + " ~ (side.row // 4) ~ "u", "vec4<f16>(f16(" ~ value ~ "))", u) }}
{% else %}
powers_{{ side.name }}[{{ i }}] = {{ value }};
{% endif %}
{% endmacro %}
{% macro power(side, i, u) %}{% if side.along_k %}u32({{ read(side.name ~ "_hi", "f16", "(" ~ i ~ ") * " ~ stride(side) ~ "u + " ~ (side.row // 4) ~ "u", u) }}.x){% else %}powers_{{ side.name }}[{{ i }}]{% endif %}{% endmacro %}

{# at module scope: arrays of powers and functions #}
{% macro functions(a, b, u) %}
{% for side in [a, b] if not side.along_k %}
var<workgroup> powers_{{ side.name }}: array<u32, {{ side.outer }}>;
{% endfor %}

{% for side in [a, b] %}
{% set name = side.name %}
fn power_{{ name }}(s: Bases, i: u32) -> u32 {
    var largest = 0u;
    for (var part = 0u; part < p.exp_{{ name }}_parts; part++) {
        largest = max(largest, exp_{{ name }}[s.exp_{{ name }} + part * p.exp_{{ name }}_part + min(i, {{ side.limit }} - 1u)]);
    }
    return select(clamp(268u - largest, 1u, 253u), 127u, largest == 0u || largest == 255u);
}
{% endfor %}

fn power_of_two(biased: u32) -> f32 {
    return bitcast<f32>(biased << 23u);
}

// Sums of a row and four columns of the tile without their scales, whose product is taken back in two halves.
fn unscaled(v: vec4<f32>, r: u32, c: u32) -> vec4<f32> {
    let of_columns = vec4<u32>({{ power(b, "c", u) }}, {{ power(b, "c + 1u", u) }}, {{ power(b, "c + 2u", u) }}, {{ power(b, "c + 3u", u) }});
    let power = vec4<i32>(254) - vec4<i32>(i32({{ power(a, "r", u) }})) - vec4<i32>(of_columns);
    let half = power >> vec4<u32>(1u);
    let up = bitcast<vec4<f32>>((half + 127) << vec4<u32>(23u));
    let rest = bitcast<vec4<f32>>((power - half + 127) << vec4<u32>(23u));
    return v * up * rest;
}
{% endmacro %}

{# in main, ahead of the first stage: powers of the tile's rows and columns, then the scales of what an invocation fetches
of each operand, `scale_{name}{fetch}` #}
{% macro scales(a, b, t, u) %}
{% for side in [a, b] %}
    for (var i = lane; i < {{ side.outer }}u; i += {{ t.threads }}u) {
        {{ keep_power(side, "i", "power_" ~ side.name ~ "(s, " ~ side.first ~ " + i)", u) }}
    }
{% endfor %}
    workgroupBarrier();
{% for side in [a, b] %}
{% for i in range(side.fetches) %}
{% if side.along_k %}
    let scale_{{ side.name }}{{ i }} = power_of_two({{ power(side, "min((lane + " ~ i * t.threads ~ "u) / " ~ (side.row // 4) ~ "u, " ~ (side.outer - 1) ~ "u)", u) }});
{% elif i < side.period %}
    let o{{ side.name }}{{ i }} = (lane + {{ i * t.threads }}u) % {{ side.row // 4 }}u * 4u;
    let scale_{{ side.name }}{{ i }} = vec4<f32>(
{% for e in range(4) %}
        power_of_two({{ power(side, "o" ~ side.name ~ i ~ " + " ~ e ~ "u", u) }}),
{% endfor %}
    );
{% endif %}
{% endfor %}
{% endfor %}
{% endmacro %}
