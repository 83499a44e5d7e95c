{# An input of the epilogue of matmul.wgsl and matmul_units.wgsl at four columns of a row: past the last row or column
it is that of the last one, whose result is not stored. #}
{% macro extra(e, row, col, guarded) %}extra{{ e.index }}(s, {{ "min(" ~ row ~ ", p.m - 1u), min(" ~ col ~ ", p.n - 1u)" if guarded else row ~ ", " ~ col }}){% endmacro %}

{# the same of one that is the same for all rows #}
{% macro extra_of_column(e, col, guarded) %}extra{{ e.index }}(s, 0u, {{ "min(" ~ col ~ ", p.n - 1u)" if guarded else col }}){% endmacro %}
