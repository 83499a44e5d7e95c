{% from "shared/units.wgsl" import put_halves %}
{% from "shared/attend_block.wgsl" import largest_of, within, column %}
{#
Rows of attention_grad_units.wgsl that are scaled: what undoes their scales lies in workgroup memory, key_factors and
value_factors of each key, and queries of each query, with its log-sum-exp and delta. The kernel's own rows and those of the
block are noted alike. `s` is that of shared/attend_block.wgsl.
#}

{# notes them of a key or query, at `at`, from the bits of the largest magnitudes of its two rows #}
{% macro note(side_keys, at, first, second, query) %}
{% if side_keys %}
                    key_factors[{{ at }}] = row_factor({{ first }});
                    value_factors[{{ at }}] = row_factor({{ second }});
{% else %}
                    queries[{{ at }}] = vec4<f32>(row_factor({{ first }}) * p.scale, row_factor({{ second }}), pair_of(b, h, {{ query }}));
{% endif %}
{% endmacro %}

{# stages what an invocation holds of rows of the other side, `theirs`, and notes them; `keys` where the own rows are keys #}
{% macro stage_scaled(theirs, keys, s, u) %}
{{ largest_of(theirs, s) }}
            let r = id / {{ s.share }}u;
            {{ within(0, s) }}{
{% for name in theirs %}
{% set which = loop.index0 %}
                let scale_{{ which }} = row_scale(largest_{{ which }});
{% for c in range(s.held) %}
{{ put_halves(name, "r * " ~ (s.width // 4 + 2) ~ "u + " ~ column(c, s), "scaled(" ~ name ~ "_" ~ c ~ ", scale_" ~ which ~ ")", u) }}
{% endfor %}
{% endfor %}
                if id % {{ s.share }}u == 0u {
{{ note(not keys, "r", "largest_0", "largest_1", "at_block + r") }}
                }
            }
{% endmacro %}
