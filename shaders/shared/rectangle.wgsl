{# x and y of an invocation in a workgroup of `wide` side by side, as kernel::rectangle numbers them #}
{% if across %}
    // 32 neighbours are {{ across }} across and {{ 32 // across }} down; of four in a row, each shares x with one and y with another, whose
    // reads of the same vec4 are then one
    let bits = lane % 32u;
    let x = lane / 32u % {{ wide // across }}u * {{ across }}u + ((bits & 1u) | (bits / {{ 64 // across }}u * 2u));
    let y = lane / {{ 32 * (wide // across) }}u * {{ 32 // across }}u + bits / 2u % {{ 32 // across }}u;
{% else %}
    let x = lane % {{ wide }}u;
    let y = lane / {{ wide }}u;
{% endif %}
