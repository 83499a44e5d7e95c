{# Rows of a head in workgroup memory, for kernels of attention. Rows lie side by side; an invocation reads four of them
at one column, its neighbours the next fours, which must not lie in the same banks: columns are exchanged within eights
where rows have such, else a gap follows each four rows. #}
{% macro cell(row, c, columns) %}
{%- if columns % 8 == 0 %}({{ row }}) * {{ columns }}u + (({{ c }}) ^ ((({{ row }}) / 4u) & 7u))
{%- else %}({{ row }}) * {{ columns }}u + ({{ row }}) / 4u + {{ c }}
{%- endif %}
{%- endmacro %}
{# an invocation's part of some rows into registers, all reads before the first use; `row` is that of the row $r #}
{% macro fetch(name, rows, columns, threads, row) %}
{% for i in range((rows * columns + threads - 1) // threads) %}
{% set id = "(lane + " ~ i * threads ~ "u)" %}
        let {{ name }}_row{{ i }} = read_{{ name }}(at_{{ name }} + {{ row|replace("$r", id ~ " / " ~ columns ~ "u") }} * p.{{ name }}_row, {{ id }} % {{ columns }}u * 4u);
{% endfor %}
{% endmacro %}
{# and from there into a tile: `value` is what becomes of $v, the four columns at c of row r #}
{% macro stage(name, rows, columns, threads, place, value) %}
{% for i in range((rows * columns + threads - 1) // threads) %}
{% if (i + 1) * threads > rows * columns %}
        if lane < {{ rows * columns - i * threads }}u {
{% else %}
        {
{% endif %}
            let r = (lane + {{ i * threads }}u) / {{ columns }}u;
            let c = (lane + {{ i * threads }}u) % {{ columns }}u;
            {{ place }} = {{ value|replace("$v", name ~ "_row" ~ i) }};
        }
{% endfor %}
{% endmacro %}
{# sum0 to sum3 += the products of four rows a0 to a3 with four b0 to b3, at one group of four columns #}
{% macro multiply(sum) %}
{% for e in ["x", "y", "z", "w"] %}
            let b_{{ e }} = vec4<f32>(b0.{{ e }}, b1.{{ e }}, b2.{{ e }}, b3.{{ e }});
{% for r in range(4) %}
            {{ sum }}{{ r }} = fma(vec4<f32>(a{{ r }}.{{ e }}), b_{{ e }}, {{ sum }}{{ r }});
{% endfor %}
{% endfor %}
{% endmacro %}
{# sum += weight · row; `guarded` where a row whose weight is 0 may hold anything #}
{% macro add(sum, weight, row, guarded) %}
{% set more = "fma(vec4<f32>(" ~ weight ~ "), " ~ row ~ ", " ~ sum ~ ")" %}
{{ sum }} = {{ "select(" ~ more ~ ", " ~ sum ~ ", " ~ weight ~ " == 0.0)" if guarded else more }};
{%- endmacro %}
