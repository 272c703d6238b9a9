package bgp

// Best is what nextHops takes for the other family.
var Best = best
