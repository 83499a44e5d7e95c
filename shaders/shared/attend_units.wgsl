{% from "shared/units.wgsl" import put, read, zero, load, fold, store, meet, put_halves, product, multiply_add %}
{#
What attention_units.wgsl and attention_grad_units.wgsl share: how a workgroup stages rows of the other side, two operands
at once, and how lanes share rows of a subgroup.

`s` says how rows are staged: `block` of them by `threads` invocations, `share` neighbours a row, each with `held` groups of
four columns of `columns` in a matrix' `width`; `scaled` where each row is scaled by a power of two, `words` where four
columns are bound as two words of two f16 numbers. Such stay words until they are staged: what is converted when it is
fetched waits for memory there.

Invocation `id` has groups of one row, id / share, where rows are scaled; else the groups id, id + threads and so on of the
block's.
#}
{% macro kind(s) %}{{ "vec2<u32>" if s.words else "vec4<f32>" }}{% endmacro %}
{% macro row(c, s) %}{{ "(id / " ~ s.share ~ "u)" if s.scaled else "((id + " ~ c * s.threads ~ "u) / " ~ s.share ~ "u)" }}{% endmacro %}
{% macro column(c, s) %}{{ "(id % " ~ s.share ~ "u + " ~ c * s.share ~ "u)" if s.scaled else "((id + " ~ c * s.threads ~ "u) % " ~ s.share ~ "u)" }}{% endmacro %}
{# `if` unless all invocations have rows in the block #}
{% macro within(c, s) %}{% if s.ahead and (s.block * s.share) % s.threads != 0 %}if {{ row(c, s) }} < {{ s.block }}u {% endif %}{% endmacro %}

{# declares what an invocation holds of the operands #}
{% macro hold(names, s) %}
{% for name in names %}
{% for c in range(s.held) %}
    var {{ name }}_{{ c }} = {{ kind(s) }}();
{% endfor %}
{% endfor %}
{% endmacro %}

{# a group of columns, and what is read there: zeros in those that only fill a matrix #}
{% macro real(column, s) %}{{ "min(" ~ column ~ ", " ~ (s.columns - 1) ~ "u)" if s.columns * 4 != s.width else column }}{% endmacro %}
{% macro filled(four, column, zeros, s) %}{{ "select(" ~ zeros ~ ", " ~ four ~ ", " ~ column ~ " < " ~ s.columns ~ "u)" if s.columns * 4 != s.width else four }}{% endmacro %}

{# reads it; `index` is the row of the operands that $r of the block is #}
{% macro fetch(names, index, s) %}
{% for c in range(s.held) %}
            {
                let c = {{ real(column(c, s), s) }};
                let i = {{ index | replace("$r", row(c, s)) }};
{% for name in names %}
{% set four = name ~ "[at_" ~ name ~ " + i * p." ~ name ~ "_row + c]" if s.words else "read_" ~ name ~ "(at_" ~ name ~ " + i * p." ~ name ~ "_row, c * 4u)" %}
                {{ name }}_{{ c }} = {{ filled(four, column(c, s), kind(s) ~ "()", s) }};
{% endfor %}
            }
{% endfor %}
{% endmacro %}

{# declares `largest_0` and `largest_1`, the bits of the largest magnitudes of the invocation's rows #}
{% macro largest_of(names, s) %}
{% for name in names %}
{% set which = loop.index0 %}
            var largest_{{ which }} = magnitude({{ name }}_0);
{% for c in range(1, s.held) %}
            largest_{{ which }} = max(largest_{{ which }}, magnitude({{ name }}_{{ c }}));
{% endfor %}
{% for by in s.shuffles %}
            largest_{{ which }} = max(largest_{{ which }}, subgroupShuffleXor(largest_{{ which }}, {{ by }}u));
{% endfor %}
{% endfor %}
{% endmacro %}

{# stores what is not scaled; a row that holds an infinity or a NaN as zeros there, with a note of the block, `stamp` #}
{% macro stage(names, stamp, s, u) %}
{% for c in range(s.held) %}
            {{ within(c, s) }}{
                let bad = not_finite({{ names[0] }}_{{ c }}) || not_finite({{ names[1] }}_{{ c }});
                if bad {
                    atomicStore(&odd, {{ stamp }});
                    atomicStore(&broken[{{ row(c, s) }}], {{ stamp }});
                }
                let at = {{ row(c, s) }} * {{ s.width // 4 + 2 }}u + {{ column(c, s) }};
{% for name in names %}
                {{ put(name ~ "_hi", "at", "halves(select(" ~ name ~ "_" ~ c ~ ", " ~ kind(s) ~ "(), bad))", u) }}
{% endfor %}
            }
{% endfor %}
{% endmacro %}

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

{# functions of what is not scaled #}
{% macro functions(s) %}
{% if not s.scaled %}

// Whether one of four is an infinity or a NaN.
fn not_finite(x: {{ kind(s) }}) -> bool {
{% if s.words %}
    let over = (x & vec2<u32>(0x7c007c00u)) + vec2<u32>(0x04000400u);
    return ((over.x | over.y) & 0x80008000u) != 0u;
{% else %}
    return !all(abs(x) <= vec4<f32>(65504.0));
{% endif %}
}

fn halves(x: {{ kind(s) }}) -> vec4<f16> {
    return vec4<f16>({{ "vec4<f32>(unpack2x16float(x.x), unpack2x16float(x.y))" if s.words else "x" }});
}
{% endif %}
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

{# declares the matrices {{ name }}{tile}_{part}_{half} of the subgroup's own rows, which go through `weights`, whose rows
are {{ at_weight }} vec4s apart; rows past the end repeat the last one #}
{% macro own_matrices(name, rows, end, role, at_weight, s, u) %}
{% for c in range(s.width // u.side) %}
{{ each_row(rows, u) }}
            let i = min(own + row, {{ end }} - 1u);
{% for four in range(u.side * rows // 4 // u.lanes if rows < u.lanes else u.side // 4) %}
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

{# writes the matrices {{ result }}{tile}_{part} times a factor of each of the lane's rows, by way of `scores` #}
{% macro give(result, rows, end, to, factor, at_score, s, u) %}
{% for c in range(s.width // u.side) %}
{% for t in range(rows // u.side) %}
    {{ store(result ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_score ~ "u", at_score ~ "u", u) }}
{% endfor %}
    {{ meet(u) }}
{{ each_row(rows, u) }}
            if own + row < {{ end }} {
                let at_o = p.{{ to }}_offset + b * p.{{ to }}_batch + (own + row) * p.{{ to }}_row + h * p.{{ to }}_head;
{% for four in range(u.side * rows // 4 // u.lanes if rows < u.lanes else u.side // 4) %}
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
