{% include "shared/main.wgsl" %}
{% if per_row %}
    // an invocation does a row alone
    let row = group * SIZE + index;
    if row >= p.rows {
        return;
    }
    let lane = 0u;
{% else %}
    // a workgroup does a row
    let row = group;
    let lane = index;
{% endif %}
