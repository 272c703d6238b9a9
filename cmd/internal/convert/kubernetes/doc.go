// Package kubernetes reads objects of Kubernetes, and the state file of Cilium, which has the same
// objects in lists of its own.
//
// A manifestReader collects the objects of all documents of a text, and source/kubernetes makes
// services of them, as it does of those of an API server. A build without that refuses both formats.
package kubernetes
