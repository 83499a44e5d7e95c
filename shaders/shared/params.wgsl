{% if immediate %}
var<immediate> p: Params;
{% else %}
@group(0) @binding(0) var<uniform> p: Params;
{% endif %}
