{# Which rows of which head a workgroup of an attention or of its gradient has, and where they are. #}

{# declares the head h of batch entry b and the first of its rows, of `rows` that are queries or, where `keys`, keys #}
{% macro place(rows, keys) %}
{% if not keys %}
    // the last block of every head, then the one before
{% endif %}
    let heads = p.groups / p.blocks;
    let bh = group % heads;
    let first = {{ "group / heads" if keys else "(p.blocks - 1u - group / heads)" }} * {{ rows }}u;
    let b = bh / p.heads;
    let h = bh % p.heads;
{% endmacro %}

{# declares where the head's rows of each operand begin #}
{% macro addresses(names) %}
{% for name in names %}
    let at_{{ name }} = p.{{ name }}_offset + b * p.{{ name }}_batch + h * p.{{ name }}_head;
{% endfor %}
{% endmacro %}

{# of a gradient: declares which rows of the other side are walked over, from `start` to `end` #}
{% macro other_side(rows, keys) %}
{% if keys %}
    let start = first_query(first, valid);
    let end = p.sq;
{% else %}
    let start = 0u;
    let end = u32(max(end_of_keys(min(first + {{ rows - 1 }}u, p.sq - 1u), valid), 0));
{% endif %}
{% endmacro %}
