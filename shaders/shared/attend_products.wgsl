{% from "shared/units.wgsl" import zero, load, fold, store, product, multiply_add %}
{#
What a subgroup of attention_units.wgsl or attention_grad_units.wgsl multiplies. In: matrices of its own rows, `tiles` of
them below each other, and rows of the staged block from t on, `runs` of them; out: their products, in `scores`. In: weights
of these pairs, in `weights`; out: their products with the block's rows, added to matrices of results.

`s` is that of shared/attend_block.wgsl.
#}

{# declares the matrices of a result, {{ result }}{tile}_{part} #}
{% macro sums(result, tiles, s, u) %}
{% for c in range(s.width // u.side) %}
{% for t in range(tiles) %}
    var {{ result }}{{ t }}_{{ c }} = {{ zero(u) }};
{% endfor %}
{% endfor %}
{% endmacro %}

{# declares products of own rows, in matrices {{ own }}{tile}_{part}_{half}, with such of the block from t on, as
{{ sum }}{row}_{column}: own rows are the rows of products, or, where `theirs_left`, the columns. Each kind of parts has a
sum of its own, since products of one sum wait for each other #}
{% macro multiply(sum, own, name, tiles, runs, theirs_left, s, u) %}
{% set kinds = [["lo", "hi"], ["hi", "lo"], ["hi", "hi"]] if u.halves | length == 2 else [["hi", "hi"]] %}
{% for i in range(runs if theirs_left else tiles) %}
{% for j in range(tiles if theirs_left else runs) %}
{% for kind in kinds %}
            var {{ sum }}{{ i }}_{{ j }}{{ "_" ~ kind | join if not loop.last }} = {{ zero(u) }};
{% endfor %}
{% endfor %}
{% endfor %}
{% for c in range(s.width // u.side) %}
{% for run in range(runs) %}
            {
{% for half in u.halves %}
                {{ load("x_" ~ half, "A" if theirs_left else "B", name ~ "_" ~ half, "(t + " ~ run * u.side ~ "u) * " ~ (s.width // 4 + 2) ~ "u + " ~ c * u.side // 4 ~ "u", (s.width // 4 + 2) ~ "u", theirs_left, u) }}
{% endfor %}
{% for t in range(tiles) %}
{% for kind in kinds %}
{% set to = sum ~ (run ~ "_" ~ t if theirs_left else t ~ "_" ~ run) ~ ("_" ~ kind | join if not loop.last else "") %}
{% if theirs_left %}
{{ multiply_add(to, "x_" ~ kind[0], own ~ t ~ "_" ~ c ~ "_" ~ kind[1], u) }}
{% else %}
{{ multiply_add(to, own ~ t ~ "_" ~ c ~ "_" ~ kind[0], "x_" ~ kind[1], u) }}
{% endif %}
{% endfor %}
{% endfor %}
            }
{% endfor %}
{% endfor %}
{% if kinds | length > 1 %}
{% for i in range(runs if theirs_left else tiles) %}
{% for j in range(tiles if theirs_left else runs) %}
{% set of = sum ~ i ~ "_" ~ j %}
            {{ fold(of ~ "_lohi", of ~ "_hilo", u) }}
            {{ fold(of, of ~ "_lohi", u) }}
{% endfor %}
{% endfor %}
{% endif %}
{% endmacro %}

{# writes these products row after row to `scores`, `down` matrices below each other and `across` beside each other #}
{% macro put_products(sum, down, across, at_score, u) %}
{% for i in range(down) %}
{% for j in range(across) %}
            {{ store(sum ~ i ~ "_" ~ j, "scores", "at_scores + " ~ (i * u.side * at_score + j * u.side // 4) ~ "u", at_score ~ "u", u) }}
{% endfor %}
{% endfor %}
{% endmacro %}

{# declares the weights of pairs, {{ name }}{tile}_{run}_{half}, which lie in `weights` row by row of the products #}
{% macro take_weights(name, tiles, runs, theirs_left, at_weight, u) %}
{% for t in range(tiles) %}
{% for run in range(runs) %}
{% for half in u.halves %}
{% set at = (run * u.side * at_weight + t * u.side // 4) if theirs_left else (t * u.side * at_weight + run * u.side // 4) %}
            {{ load(name ~ t ~ "_" ~ run ~ "_" ~ half, "A", "weights_" ~ half, "at_weights + " ~ at ~ "u", at_weight ~ "u", not theirs_left, u) }}
{% endfor %}
{% endfor %}
{% endfor %}
{% endmacro %}

{# results += weights · rows, of the subgroup's `tiles` of rows and `runs` of those of the block from t on: weights in the
matrices {{ weights }}{tile}_{run}_{half}, rows in the arrays {{ name }}_{half}, results in {{ result }}{tile}_{part} #}
{% macro sum_up(result, weights, name, tiles, runs, s, u) %}
{% set split = u.halves | length == 2 %}
{% for c in range(s.width // u.side) %}
            {
{% if split %}
                // sums of the units are cut off, not rounded: they are kept short
{% for t in range(tiles) %}
                var part{{ t }} = {{ zero(u) }};
{% endfor %}
{% endif %}
{% for run in range(runs) %}
                {
{% for half in u.halves %}
                    {{ load("x_" ~ half, "B", name ~ "_" ~ half, "(t + " ~ run * u.side ~ "u) * " ~ (s.width // 4 + 2) ~ "u + " ~ c * u.side // 4 ~ "u", (s.width // 4 + 2) ~ "u", true, u) }}
{% endfor %}
{% for t in range(tiles) %}
{{ product("part" ~ t if split else result ~ t ~ "_" ~ c, weights ~ t ~ "_" ~ run, "x", u) }}
{% endfor %}
                }
{% endfor %}
{% if split %}
{% for t in range(tiles) %}
                {{ fold(result ~ t ~ "_" ~ c, "part" ~ t, u) }}
{% endfor %}
{% endif %}
            }
{% endfor %}
{% endmacro %}
