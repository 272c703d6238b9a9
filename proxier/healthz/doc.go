// Package healthz answers over HTTP how this node and its services do:
// /healthz, /livez, /readyz and /metrics for those who watch the node, and
// health_check_node_port for load balancers that choose between nodes. Paths,
// status codes, bodies and headers are those of kube-proxy, so that what is
// configured for one works with the other.
//
// The main types are Server, the listeners; Health, whether this node is well; and Metrics.
package healthz
