{% from "shared/units.wgsl" import put, load, multiply_add, fold %}
{#
The way of weights in linear_stack_units.wgsl: eight at a time from their buffer, where pack_weights.wgsl has laid them
out, by `fetch` into registers; by `stage` from there into the subgroup's part of the workgroup array `staged`; from
there `products` makes sums.

`s` says how they are shared, as src/kernel/linear_stack/tile.rs makes it: a layer has `blocks` steps along the inner
dimension, each of `step` eights. Of these `eights` are the subgroup's: of `over` matrices each of the `halves`, a matrix of
`matrix` vec4s in which `part` of a column are neighbours. Weights of `ahead` steps are in registers; those of `stages` are
staged, each in a `region` of vec4s, columns of a matrix `at_column` apart.
#}
{# a lane's share of a step's weights, in a layer's from `at` on #}
{% macro fetch(declare, at, k, s, u) %}
{% for j in range(s.eights // u.lanes) %}
            {{ declare }}b{{ k % s.ahead }}_{{ j }} = w[{{ at }} + {{ k * s.step + j * u.lanes }}u + l];
{% endfor %}
{% endmacro %}

{# where a vec4 of a step's weights is staged: pack_weights.wgsl has ordered them so that lanes meet no bank twice #}
{% macro place(e, s, u) %}at_staged + ({{ e }}) / {{ s.matrix }}u * {{ u.side * s.at_column }}u + ({{ e }}) / {{ s.part }}u % {{ u.side }}u * {{ s.at_column }}u + ({{ e }}) % {{ s.matrix }}u / {{ u.side * s.part }}u * {{ s.part }}u + ({{ e }}) % {{ s.part }}u{% endmacro %}

{# stages eight weights, the `at`-th of the subgroup's #}
{% macro stage(at, value, offset, s, u) %}
            {
                let v = {{ value }};
                let at_first = {{ place("(" ~ at ~ ") * 2u", s, u) }} + {{ offset }}u;
                let at_second = {% if s.part == 2 %}at_first + 1u{% else %}{{ place("(" ~ at ~ ") * 2u + 1u", s, u) }} + {{ offset }}u{% endif %};
                {{ put("staged", "at_first", "vec4<f16>(vec2<f16>(unpack2x16float(v.x)), vec2<f16>(unpack2x16float(v.y)))", u) }}
                {{ put("staged", "at_second", "vec4<f16>(vec2<f16>(unpack2x16float(v.z)), vec2<f16>(unpack2x16float(v.w)))", u) }}
            }
{% endmacro %}

{# adds all products of step k, whose weights are staged at `from`, to sum{matrix}; of split ones to part{matrix}, and
those with a low half to rest{matrix} #}
{% macro products(k, from, s, u) %}
{% set split = s.halves == 2 %}
{% for o in range(s.over) %}
{% for half in u.halves %}
            {{ load("b_" ~ o ~ "_" ~ half, "B", "staged", "at_staged + " ~ (from + (o * s.halves + loop.index0) * u.side * s.at_column) ~ "u", s.at_column ~ "u", false, u) }}
{% endfor %}
{% endfor %}
{% for t in range(s.down) %}
{% for half in u.halves %}
            {{ load("a" ~ t ~ "_" ~ half, "A", "rows_" ~ half, (t * u.side * s.at_row) ~ "u + " ~ k ~ " * " ~ u.side // 4 ~ "u", s.at_row ~ "u", true, u) }}
{% endfor %}
{% endfor %}
{% for left, right in [["lo", "hi"], ["hi", "lo"], ["hi", "hi"]] if split or left == right %}
{% for o in range(s.over) %}
{% for t in range(s.down) %}
            {{ multiply_add(("sum" if not split else "part" if left == right else "rest") ~ t ~ "_" ~ o, "a" ~ t ~ "_" ~ left, "b_" ~ o ~ "_" ~ right, u) }}
{% endfor %}
{% endfor %}
{% endfor %}
{% endmacro %}

{# adds part{matrix} or rest{matrix} to sum{matrix} #}
{% macro add(parts, s, u) %}
{% for m in s.matrices %}
            {{ fold("sum" ~ m, parts ~ m, u) }}
{% endfor %}
{% endmacro %}
