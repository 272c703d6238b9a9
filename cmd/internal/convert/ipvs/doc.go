// Package ipvs reads what ipvsadm-save prints, and makes services of virtual servers of IPVS.
//
// ipvsadm and keepalived describe the same objects: Serve makes a service of a VirtualServer
// with its Destinations, whichever of the two it was read from, and notes what svcproxy does in
// another way. The types are these two, and options, those of a line of ipvsadm.
package ipvs
