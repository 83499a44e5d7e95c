{% from "shared/units.wgsl" import put, read, store as store_sum, meet %}
{#
The way of rows in linear_stack_units.wgsl. Between layers lanes hold them, as vec4s v{matrix}_{row}_{column}: `stage_rows`
puts them, scaled, rounded and split, into the workgroup arrays rows_{half}, from which units load matrices; `take_sums`
brings the sums that units make of them back to lanes, by way of workgroup memory; `undo_scales` takes scales back.

`s` says how a workgroup's `rows` rows of `quads` vec4s are shared, as src/kernel/linear_stack/tile.rs makes it. Each of
`subs` subgroups has the columns of `over` matrices of all rows, which are `down` matrices below each other; its sums
are `matrices`, "{down}_{over}". It turns `beside` of them into vec4s at once, of which `fours` make a row; lanes side by
side have `at_once` rows. A lane has `mine` rows of a matrix and `each` vec4s of a row of so many matrices. `lane_rows` are
all its rows, each with the vec4s that are `held` of it, at `columns`; `row` and `column` count from row_0 and column_0,
and `of` stands for them in names. Rows lie `at_row` vec4s apart in workgroup memory, rows of sums `at_sum`.
#}
{% macro row(x) %}(row_0 + {{ x.row }}u){% endmacro %}
{% macro column(x) %}(column_0 + {{ x.column }}u){% endmacro %}

{# where a vec4 is in an array of rows, those past the end being the last; of a layer, where one is given #}
{% macro place(four, layer, s) %}{{ layer ~ " * p.rows * " ~ s.quads ~ "u + " if layer }}min(first + {{ row(four) }}, last) * {{ s.quads }}u + {{ column(four) }}{% endmacro %}
{% macro write(name, four, layer, scalar, s) %}
            if first + {{ row(four) }} <= last {
                {{ name }}[{{ place(four, layer, s) }}] = vec4<{{ scalar }}>(v{{ four.of }});
            }
{% endmacro %}

{# notes the largest magnitude of each row in the subgroup's columns #}
{% macro note_largest(s, u) %}
{% for own in s.lane_rows %}
        {
            var most = magnitude(v{{ own.of }}_0);
{% for c in range(1, s.columns | length) %}
            most = max(most, magnitude(v{{ own.of }}_{{ c }}));
{% endfor %}
{% for by in [1, 2, 4, 8, 16] if by < s.fours and u.lanes > 1 %}
            most = max(most, subgroupShuffleXor(most, {{ by }}u));
{% endfor %}
            if l % {{ s.fours }}u == 0u {
                largest[{{ row(own) }} * {{ s.subs }}u + sub] = most;
            }
        }
{% endfor %}
{% endmacro %}

{# stores the lane's rows; where they are scaled, as shared/halves.wgsl has it, up{row} and down{row} undo that #}
{% macro stage_rows(scaled, s, u) %}
{% for own in s.lane_rows %}
        {
            let at = {{ row(own) }} * {{ s.at_row }}u;
{% if scaled %}
            let at_largest = {{ row(own) }} * {{ s.subs }}u;
            var most = largest[at_largest];
{% for sub in range(1, s.subs) %}
            most = max(most, largest[at_largest + {{ sub }}u]);
{% endfor %}
            let scale = row_scale(most);
            // the exponent of what undoes it, biased twice: in two halves nothing between overflows
            let power = exponent(most) + 113u;
            up{{ own.of }} = bitcast<f32>(select((power / 2u) << 23u, most | 0x00400000u, broken(most)));
            down{{ own.of }} = bitcast<f32>((power - power / 2u) << 23u);
{% endif %}
{% for four in own.held %}
            {
                let v = {{ "scaled(v" ~ four.of ~ ", scale)" if scaled else "v" ~ four.of }};
{% if u.halves | length == 2 %}
                let high = upper(v);
                {{ put("rows_hi", "at + " ~ column(four), "vec4<f16>(high)", u) }}
                {{ put("rows_lo", "at + " ~ column(four), "vec4<f16>(v - high)", u) }}
{% else %}
                {{ put("rows_hi", "at + " ~ column(four), "vec4<f16>(v)", u) }}
{% endif %}
            }
{% endfor %}
        }
{% endfor %}
{% endmacro %}

{# the sums sum{matrix} into the lane's vec4s #}
{% macro take_sums(s, u) %}
{% for t in range(s.down) %}
{% for group in range(s.over // s.beside) %}
{% for o in range(s.beside) %}
        {{ store_sum("sum" ~ t ~ "_" ~ (group * s.beside + o), "sums", "at_sums + " ~ (o * u.side // 4) ~ "u", s.at_sum ~ "u", u) }}
{% endfor %}
        {{ meet(u) }}
{% for r in range(s.mine) %}
{% for j in range(s.each) %}
        v{{ t }}_{{ r }}_{{ group * s.each + j }} = {{ read("sums", "f32", "at_sums + (row_0 + " ~ r * s.at_once ~ "u) * " ~ s.at_sum ~ "u + l % " ~ s.fours ~ "u + " ~ j ~ "u", u) }};
{% endfor %}
{% endfor %}
        {{ meet(u) }}
{% endfor %}
{% endfor %}
{% endmacro %}

{# and without the scales of their rows and of their columns of weights, whose factors are f{column} #}
{% macro undo_scales(s) %}
{% for own in s.lane_rows %}
{% for four in own.held %}
        v{{ four.of }} *= up{{ own.of }};
        v{{ four.of }} *= f{{ loop.index0 }};
        v{{ four.of }} *= down{{ own.of }};
{% endfor %}
{% endfor %}
{% endmacro %}
