{#
Matrices of u.side × u.side that the u.lanes invocations of a subgroup hold together, or that one invocation holds as an
array, row after row, where they are emulated. A left and a right one are of f16, an accumulator is of f32.

Workgroup arrays that they are loaded from and stored to count in vec4s, whatever they are made of: declare them with
`array`, touch them with `put` and `read`. A stride is between rows, or between columns where `by_rows` is false, and `at`
is where the first element is; at that lies four to a vec4, so that columns start at multiples of four.

All but `put` and `read` stand in control flow that is uniform over the workgroup, which naga checks: an early return of
workgroups that have no work is refused, `for (var go = group < p.groups; go; go = false)` around the body is not. No name
may be A, B or C: naga takes it for a matrix's role.
#}
{% macro enable(u) %}
{% if not u.emulated %}
enable wgpu_cooperative_matrix;
{% endif %}
{% endmacro %}

{# a workgroup array of so many vec4s of f16 or f32 #}
{% macro array(name, scalar, fours, u) %}
{% if u.scalar %}
var<workgroup> {{ name }}: array<{{ scalar }}, {{ fours * 4 }}>;
{% else %}
var<workgroup> {{ name }}: array<vec4<{{ scalar }}>, {{ fours }}>;
{% endif %}
{% endmacro %}

{# stores a vec4 #}
{% macro put(name, at, value, u) %}
{% if u.scalar %}
{
    let four = {{ value }};
    let first = ({{ at }}) * 4u;
    {{ name }}[first] = four.x;
    {{ name }}[first + 1u] = four.y;
    {{ name }}[first + 2u] = four.z;
    {{ name }}[first + 3u] = four.w;
}
{% else %}
{{ name }}[{{ at }}] = {{ value }};
{% endif %}
{% endmacro %}

{# a vec4 of f16 or f32 #}
{% macro read(name, scalar, at, u) %}{% if u.scalar %}vec4<{{ scalar }}>({{ name }}[({{ at }}) * 4u], {{ name }}[({{ at }}) * 4u + 1u], {{ name }}[({{ at }}) * 4u + 2u], {{ name }}[({{ at }}) * 4u + 3u]){% else %}{{ name }}[{{ at }}]{% endif %}{% endmacro %}

{# an accumulator of zeros #}
{% macro zero(u) %}{% if u.emulated %}array<f32, {{ u.side * u.side }}>(){% else %}coop_mat{{ u.side }}x{{ u.side }}<f32, C>(){% endif %}{% endmacro %}

{# declares `matrix`, whose role is "A" on the left and "B" on the right #}
{% macro load(matrix, role, name, at, stride, by_rows, u) %}
{% if u.emulated %}
var {{ matrix }}: array<f32, {{ u.side * u.side }}>;
for (var e = 0u; e < {{ u.side * u.side }}u; e++) {
{% if by_rows %}
    let e_at = ({{ at }}) * 4u + e / {{ u.side }}u * ({{ stride }}) * 4u + e % {{ u.side }}u;
{% else %}
    let e_at = ({{ at }}) * 4u + e % {{ u.side }}u * ({{ stride }}) * 4u + e / {{ u.side }}u;
{% endif %}
    {{ matrix }}[e] = f32({{ name }}[e_at{% if not u.scalar %} / 4u][e_at % 4u{% endif %}]);
}
{% else %}
let {{ matrix }} = coopLoad{% if by_rows %}T{% endif %}<coop_mat{{ u.side }}x{{ u.side }}<f16, {{ role }}>>(&{{ name }}[{{ place(at, u) }}], {{ place(stride, u) }});
{% endif %}
{% endmacro %}

{% macro place(fours, u) %}{% if u.scalar %}({{ fours }}) * 4u{% else %}{{ fours }}{% endif %}{% endmacro %}

{# sum += left · right #}
{% macro multiply_add(sum, left, right, u) %}
{% if u.emulated %}
for (var e = 0u; e < {{ u.side * u.side }}u; e++) {
    for (var k = 0u; k < {{ u.side }}u; k++) {
        {{ sum }}[e] = fma({{ left }}[e / {{ u.side }}u * {{ u.side }}u + k], {{ right }}[k * {{ u.side }}u + e % {{ u.side }}u], {{ sum }}[e]);
    }
}
{% else %}
{{ sum }} = coopMultiplyAdd({{ left }}, {{ right }}, {{ sum }});
{% endif %}
{% endmacro %}

{# sum += part, both accumulators #}
{% macro fold(sum, part, u) %}
{% if u.emulated %}
for (var e = 0u; e < {{ u.side * u.side }}u; e++) {
    {{ sum }}[e] += {{ part }}[e];
}
{% else %}
{{ sum }} = {{ sum }} + {{ part }};
{% endif %}
{% endmacro %}

{# writes an accumulator, row after row, to a workgroup array of f32 #}
{% macro store(sum, name, at, stride, u) %}
{% if u.emulated %}
for (var e = 0u; e < {{ u.side * u.side }}u; e++) {
    let e_at = ({{ at }}) * 4u + e / {{ u.side }}u * ({{ stride }}) * 4u + e % {{ u.side }}u;
    {{ name }}[e_at{% if not u.scalar %} / 4u][e_at % 4u{% endif %}] = {{ sum }}[e];
}
{% else %}
coopStoreT({{ sum }}, &{{ name }}[{{ place(at, u) }}], {{ place(stride, u) }});
{% endif %}
{% endmacro %}

{# reads an accumulator that `store` has written #}
{% macro load_sum(sum, name, at, stride, u) %}
{% if u.emulated %}
for (var e = 0u; e < {{ u.side * u.side }}u; e++) {
    let e_at = ({{ at }}) * 4u + e / {{ u.side }}u * ({{ stride }}) * 4u + e % {{ u.side }}u;
    {{ sum }}[e] = {{ name }}[e_at{% if not u.scalar %} / 4u][e_at % 4u{% endif %}];
}
{% else %}
{{ sum }} = coopLoadT<coop_mat{{ u.side }}x{{ u.side }}<f32, C>>(&{{ name }}[{{ place(at, u) }}], {{ place(stride, u) }});
{% endif %}
{% endmacro %}

{# sum *= factor, the same in all lanes #}
{% macro times(sum, factor, u) %}
{% if u.emulated %}
for (var e = 0u; e < {{ u.side * u.side }}u; e++) {
    {{ sum }}[e] *= {{ factor }};
}
{% else %}
{{ sum }} = {{ sum }} * ({{ factor }});
{% endif %}
{% endmacro %}

{# waits for the other lanes of the subgroup #}
{% macro meet(u) %}{% if not u.emulated %}subgroupBarrier();{% endif %}{% endmacro %}

{# stores a scaled vec4 in the array of that name, or its halves in the two; `upper` is that of shared/halves.wgsl #}
{% macro put_halves(name, at, value, u) %}
{% if u.halves | length == 2 %}
            {
                let x = {{ value }};
                let high = upper(x);
                {{ put(name ~ "_hi", at, "vec4<f16>(high)", u) }}
                {{ put(name ~ "_lo", at, "vec4<f16>(x - high)", u) }}
            }
{% else %}
            {{ put(name ~ "_hi", at, "vec4<f16>(" ~ value ~ ")", u) }}
{% endif %}
{% endmacro %}

{# sum += left · right, with what their parts make together, but for the product of the low ones #}
{% macro product(sum, left, right, u) %}
{% if u.halves | length == 2 %}
{{ multiply_add(sum, left ~ "_lo", right ~ "_hi", u) }}
{{ multiply_add(sum, left ~ "_hi", right ~ "_lo", u) }}
{% endif %}
{{ multiply_add(sum, left ~ "_hi", right ~ "_hi", u) }}
{% endmacro %}
