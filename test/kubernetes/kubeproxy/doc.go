// Package kubeproxy holds what objects of a cluster mean to svcproxy against what
// they mean to kube-proxy's own packages: the same random objects go through both,
// and packets from every kind of source to every address must fare alike, except for
// the differences that docs/kubernetes.md names.
//
//	                ┌─► source/kubernetes ─► loop.Loop ─► State ─────┐
//	random objects ─┤                                                ├─► the same packets
//	                └─► pkg/proxy/iptables ─► rules, as restored ────┘
package kubeproxy
