{% from "shared/rows.wgsl" import cell, fetch, stage, multiply, add %}
{#
How attention_grad.wgsl has whole rows of both sides in workgroup memory, own0 and own1, other0 and other1, and in one of
these then weights and gradients of pairs, `pairs`. Macros read the kernel's values as they are where it imports them.
#}
{# what is staged: rows past the end are 0 #}
{% set zero_own = "select($v, vec4<f32>(0.0), first + r >= " ~ own_rows ~ ")" %}
{% set zero_other = "select($v, vec4<f32>(0.0), t0 + r >= end)" %}
{% set own_row = "min(first + $r, " ~ own_rows ~ " - 1u)" %}
{# stages those own rows whose place nothing else takes #}
{% macro stage_own() %}
{% set resident = ours[:1] if keys else ours %}
{% for name in resident %}
{{ fetch(name, own, columns, threads, own_row) -}}
{{ stage(name, own, columns, threads, "own" ~ loop.index0 ~ "[" ~ cell("r", "c", columns) ~ "]", zero_own) -}}
{% endfor %}
{% endmacro %}

{# stages the block from row t0 on, and own rows whose place pairs have taken #}
{% macro stage_block() %}
{% if keys %}
{{ fetch(ours[1], own, columns, threads, own_row) -}}
{% endif %}
{% for name in theirs %}
{{ fetch(name, other, columns, threads, "min(t0 + $r, end - 1u)") -}}
{% endfor %}
{% if keys %}
{{ stage(ours[1], own, columns, threads, "own1[" ~ cell("r", "c", columns) ~ "]", zero_own) -}}
{% endif %}
{% for name in theirs %}
{{ stage(name, other, columns, threads, "other" ~ loop.index0 ~ "[" ~ cell("r", "c", columns) ~ "]", zero_other) -}}
{% endfor %}
{% endmacro %}

{# s and g: the products of the invocation's four rows of the block with its own four #}
{% macro products() %}
{% for r in range(4) %}
        var s{{ r }} = vec4<f32>(0.0);
        var g{{ r }} = vec4<f32>(0.0);
{% endfor %}
        for (var c = 0u; c < {{ columns }}u; c += 1u) {
            let at_x = {{ cell("x * 4u", "c", columns) }};
            let at_y = {{ cell("y * 4u", "c", columns) }};
{% for s in ["s", "g"] %}
            {
{% for r in range(4) %}
                let b{{ r }} = own{{ 0 if s == "s" else 1 }}[at_x + {{ r * columns }}u];
                let a{{ r }} = other{{ 0 if s == "s" else 1 }}[at_y + {{ r * columns }}u];
{% endfor %}
{{ multiply(s) }}
            }
{% endfor %}
        }
{% endmacro %}

{# pairs · rows of the block; guarded where some query does not see some key, whose rows may hold anything #}
{% macro apply(guarded) %}
            for (var t = 0u; t < {{ other }}u; t += 4u) {
{% for c in range(nc) %}
{# the last results of some invocations are past the end, and not stored #}
{% set column = "y + " ~ c * ty ~ "u" %}
                let at{{ c }} = {{ cell("t", "min(" ~ column ~ ", " ~ (columns - 1) ~ "u)" if (c + 1) * ty > columns else column, columns) }};
{% endfor %}
{% for i in range(4) %}
                {
{% for sum in writes %}
                    let w_{{ sum }} = {{ pairs }}[(t + {{ i }}u) * {{ tx }}u + x + {{ 0 if sum == "dv" else second }}u];
{% for c in range(nc) %}
                    let u_{{ sum }}{{ c }} = {{ "other1" if sum == "dv" else "other0" }}[at{{ c }} + {{ i * columns }}u];
{% for r in range(4) %}
                    {{ add(sum ~ r ~ "_" ~ c, "w_" ~ sum ~ "." ~ "xyzw"[r], "u_" ~ sum ~ c, guarded) }}
{% endfor %}
{% endfor %}
{% endfor %}
                }
{% endfor %}
            }
{% endmacro %}

{# adds to the results what the block gives them #}
{% macro add_up() %}
        if all_see {
{{ apply(false) -}}
        } else {
{{ apply(true) -}}
        }
{% endmacro %}
