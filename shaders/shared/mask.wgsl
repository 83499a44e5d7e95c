{# where the row of the mask begins that query i of the head h of batch entry b has #}
{% macro mask_row(i, mask) %}{% if mask %}p.m_offset + b * p.m_batch + {{ i }} * p.m_row + h * p.m_head{% else %}0u{% endif %}{% endmacro %}
