{% from "shared/units.wgsl" import put, read, load, load_sum, store, meet, put_halves %}
{% from "shared/attend_block.wgsl" import real, filled %}
{#
How the lanes of a subgroup of attention_units.wgsl or attention_grad_units.wgsl share its rows: a lane has some of `rows`,
or one together with neighbours. In: the subgroup's own rows as they are bound, from row `own` of the head on; out: matrices
of them. In: matrices of results; out: rows of results as they are bound.

Both go through the subgroup's part of workgroup memory: rows of `weights` from at_weights on, {{ at_weight }} vec4s apart,
and of `scores` from at_scores on, {{ at_score }} apart. `s` is that of shared/attend_block.wgsl.
#}

{# what a lane does for each of its rows of the subgroup's `rows`, of which `row` is the number; opens a brace #}
{% macro each_row(rows, u) %}
{% if rows <= u.lanes %}
        {
            let r = 0u;
            let row = l / {{ u.lanes // rows }}u;
{% else %}
        for (var r = 0u; r < {{ rows // u.lanes }}u; r += 1u) {
            let row = r * {{ u.lanes }}u + l;
{% endif %}
{% endmacro %}

{# the lane's vec4 number i of such a row: its neighbours in the row have those between #}
{% macro mine(i, rows, u) %}{% set sharers = u.lanes // rows if rows < u.lanes else 1 %}{{ i * sharers }}u{{ " + l % " ~ sharers ~ "u" if sharers > 1 }}{% endmacro %}

{# four numbers of an array that several invocations wrote: a part of a vec4 by itself may be written as all of it #}
{% macro four_of(name, at) %}vec4<f32>({% for e in range(4) %}{{ name }}[({{ at }}) * 4u + {{ e }}u]{{ ", " if e < 3 }}{% endfor %}){% endmacro %}

{# combines a variable with those of the lanes that share its row, by a function or "+" #}
{% macro across(name, combine, rows, u) %}
{% for by in [1, 2, 4, 8, 16] if by * rows < u.lanes %}
{% if combine == "+" %}
                {{ name }} += subgroupShuffleXor({{ name }}, {{ by }}u);
{% else %}
                {{ name }} = {{ combine }}({{ name }}, subgroupShuffleXor({{ name }}, {{ by }}u));
{% endif %}
{% endfor %}
{% endmacro %}

{# whether some lane's condition holds, and the most of all lanes' numbers #}
{% macro some(x, u) %}{{ x if u.emulated else "subgroupAny(" ~ x ~ ")" }}{% endmacro %}
{% macro most(x, u) %}{{ x if u.emulated else "subgroupMax(" ~ x ~ ")" }}{% endmacro %}

{# declares of each of the lane's own rows of an operand the bits of its largest magnitude, `largest`, and its scale, in
{{ name }}_scale, in an `each_row`; `end` is how many rows there are #}
{% macro own_scale(name, rows, end, s, u) %}
            var largest_{{ name }} = 0u;
            for (var c = {{ mine(0, rows, u) }}; c < {{ s.columns }}u; c += {{ u.lanes // rows if rows < u.lanes else 1 }}u) {
                largest_{{ name }} = max(largest_{{ name }}, magnitude(read_{{ name }}(at_{{ name }} + min(own + row, {{ end }} - 1u) * p.{{ name }}_row, c * 4u)));
            }
{{ across("largest_" ~ name, "max", rows, u) }}
            {{ name }}_scale[r] = row_scale(largest_{{ name }});
{% endmacro %}

{# how many vec4s of a row of a matrix are a lane's #}
{% macro fours_of(rows, u) %}{{ u.side * rows // 4 // u.lanes if rows < u.lanes else u.side // 4 }}{% endmacro %}

{# declares the matrices {{ name }}{tile}_{part}_{half} of the subgroup's own rows, which go through `weights`, whose rows
are {{ at_weight }} vec4s apart; rows past the end repeat the last one #}
{% macro own_matrices(name, rows, end, role, at_weight, s, u) %}
{% for c in range(s.width // u.side) %}
{{ each_row(rows, u) }}
            let i = min(own + row, {{ end }} - 1u);
{% for four in range(fours_of(rows, u) | int) %}
            {
                let column = {{ c * u.side // 4 }}u + {{ mine(four, rows, u) }};
                let four = {{ filled("read_" ~ name ~ "(at_" ~ name ~ " + i * p." ~ name ~ "_row, " ~ real("column", s) ~ " * 4u)", "column", "vec4<f32>()", s) }};
{{ put_halves("weights", "at_weights + row * " ~ at_weight ~ "u + column - " ~ c * u.side // 4 ~ "u", "scaled(four, " ~ name ~ "_scale[r])" if s.scaled else "four", u) }}
            }
{% endfor %}
        }
    {{ meet(u) }}
{% for t in range(rows // u.side) %}
{% for half in u.halves %}
    {{ load(name ~ t ~ "_" ~ c ~ "_" ~ half, role, "weights_" ~ half, "at_weights + " ~ t * u.side * at_weight ~ "u", at_weight ~ "u", role == "A", u) }}
{% endfor %}
{% endfor %}
    {{ meet(u) }}
{% endfor %}
{% endmacro %}

{# writes the matrices {{ result }}{tile}_{c} row after row to `scores`, and there goes through the lane's rows; opens a brace #}
{% macro each_row_of(result, c, rows, at_score, u) %}
{% for t in range(rows // u.side) %}
                    {{ store(result ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_score ~ "u", at_score ~ "u", u) }}
{% endfor %}
                    {{ meet(u) }}
{{ each_row(rows, u) }}
{% endmacro %}

{# multiplies the lane's rows of the matrices {{ result }}{tile}_{part} with a factor of each, by way of `scores` #}
{% macro scale_rows(result, rows, factor, at_score, s, u) %}
{% for c in range(s.width // u.side) %}
{{ each_row_of(result, c, rows, at_score, u) }}
{% for four in range(fours_of(rows, u) | int) %}
{% set at = "at_scores + row * " ~ at_score ~ "u + " ~ mine(four, rows, u) %}
                        {{ put("scores", at, read("scores", "f32", at, u) ~ " * " ~ factor, u) }}
{% endfor %}
                    }
                    {{ meet(u) }}
{% for t in range(rows // u.side) %}
                    {{ load_sum(result ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_score ~ "u", at_score ~ "u", u) }}
{% endfor %}
                    {{ meet(u) }}
{% endfor %}
{% endmacro %}

{# writes the matrices {{ result }}{tile}_{part} times a factor of each of the lane's rows, by way of `scores` #}
{% macro give(result, rows, end, to, factor, at_score, s, u) %}
{% for c in range(s.width // u.side) %}
{{ each_row_of(result, c, rows, at_score, u) }}
            if own + row < {{ end }} {
                let at_o = p.{{ to }}_offset + b * p.{{ to }}_batch + (own + row) * p.{{ to }}_row + h * p.{{ to }}_head;
{% for four in range(fours_of(rows, u) | int) %}
                {
                    let column = {{ mine(four, rows, u) }};
                    if column + {{ c * u.side // 4 }}u < {{ s.columns }}u {
                        write_{{ result }}(at_o, (column + {{ c * u.side // 4 }}u) * 4u, {{ read("scores", "f32", "at_scores + row * " ~ at_score ~ "u + column", u) }} * {{ factor }});
                    }
                }
{% endfor %}
            }
        }
    {{ meet(u) }}
{% endfor %}
{% endmacro %}
