{% from "shared/units.wgsl" import put, array %}
{% from "shared/product_sums.wgsl" import add_on_units %}
{#
The way of an operand's stages in matmul_units.wgsl: by `fetch` from its buffer into registers; by `stage` from there,
scaled, rounded and split, into the workgroup arrays {name}_{half}, from which units load matrices. A stage lies there as
it does in the buffer, rows along the dimension in which it is contiguous, each with eight numbers of padding.

`side` is the operand and `t` says how a stage is fetched, both as src/kernel/matmul/source.rs makes them. A stage is
`side.rows` rows of `side.row` numbers, read `t.step` at a time: an invocation has those number lane, lane + t.threads
and so on, `side.fetches` in all.
#}
{# from row to row in workgroup memory, in vec4s #}
{% macro stride(side) %}{{ side.row // 4 + 2 }}{% endmacro %}

{% macro stage_array(side, half, u) %}
{{ array(side.name ~ "_" ~ half, "f16", side.rows * (side.row // 4 + 2), u) }}
{% endmacro %}

{# where a matrix starts in a stage: `along` of the outer dimension, an expression, `more` of it, and k #}
{% macro place(side, along, more, k) %}{% if side.along_k %}({{ along }} + {{ more }}u) * {{ stride(side) }}u + {{ k // 4 }}u{% else %}({{ along }} + {{ more }}u) / 4u + {{ k * (side.row // 4 + 2) }}u{% endif %}{% endmacro %}

{% macro kind(t) %}vec4<{{ "u32" if t.eights else t.staged }}>{% endmacro %}
{# declares what an invocation holds of a stage #}
{% macro registers(side, t) %}
{% for i in range(side.fetches) %}
    var r{{ side.name }}{{ i }}: {{ kind(t) }};
{% endfor %}
{% endmacro %}

{# `if` unless all invocations have something to fetch #}
{% macro within(i, side, t) %}{% set all = side.row * side.rows // t.step %}{% if (i + 1) * t.threads > all %}if lane + {{ i * t.threads }}u < {{ all }}u {% endif %}{% endmacro %}

{# reads the stage at k0 #}
{% macro fetch(side, t) %}
{% set steps = side.row // t.step %}
{% set name = side.name %}
{% for i in range(side.fetches) %}
    {{ within(i, side, t) }}{
        let id = lane + {{ i * t.threads }}u;
{% if side.along_k %}
        let o = {{ side.first }} + id / {{ steps }}u;
        let at = s.{{ name }} + o * p.{{ name }}_stride;
        let along = k0 + id % {{ steps }}u * {{ t.step }}u;
{% set inside = "o < " ~ side.limit %}
{% set end = t.k_end %}
{% else %}
        let k = k0 + id / {{ steps }}u;
        let at = s.{{ name }} + k * p.{{ name }}_stride;
        let along = {{ side.first }} + id % {{ steps }}u * {{ t.step }}u;
{% set inside = "k < " ~ t.k_end %}
{% set end = side.limit %}
{% endif %}
{% if t.guarded %}
        r{{ name }}{{ i }} = {{ kind(t) }}({{ "0u" if t.eights else "0.0" }});
        if {{ inside }} {
            r{{ name }}{{ i }} = read_{{ name }}(at, along, {{ end }});
        }
{% else %}
        r{{ name }}{{ i }} = read_{{ name }}(at, along, {{ end }});
{% endif %}
    }
{% endfor %}
{% endmacro %}

{# stores what was fetched, times scales that shared/product_scales.wgsl declares #}
{% macro stage(side, t, u) %}
{% set steps = side.row // t.step %}
{% set name = side.name %}
{% for i in range(side.fetches) %}
        {{ within(i, side, t) }}{
            let id = lane + {{ i * t.threads }}u;
            let at = id / {{ steps }}u * {{ stride(side) }}u + id % {{ steps }}u{{ " * 2u" if t.eights else "" }};
{% if t.sums and name == "a" %}
{{ add_on_units(i, side, t) }}
{% endif %}
{% if t.eights %}
            let v = r{{ name }}{{ i }};
            {{ put(name ~ "_hi", "at", "vec4<f16>(vec2<f16>(unpack2x16float(v.x)), vec2<f16>(unpack2x16float(v.y)))", u) }}
            {{ put(name ~ "_hi", "at + 1u", "vec4<f16>(vec2<f16>(unpack2x16float(v.z)), vec2<f16>(unpack2x16float(v.w)))", u) }}
{% else %}
{% if t.scaled %}
            let v = r{{ name }}{{ i }} * scale_{{ name }}{{ i if side.along_k else i % side.period }};
{% else %}
            let v = r{{ name }}{{ i }};
{% endif %}
{% if u.halves | length == 2 %}
            let hi = bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
            {{ put(name ~ "_hi", "at", "vec4<f16>(hi)", u) }}
            {{ put(name ~ "_lo", "at", "vec4<f16>(v - hi)", u) }}
{% else %}
            {{ put(name ~ "_hi", "at", "vec4<f16>(v)", u) }}
{% endif %}
{% endif %}
        }
{% endfor %}
{% endmacro %}
