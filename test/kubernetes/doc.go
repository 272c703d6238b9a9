// Package kubernetes holds svcproxy to a real API server: kube-apiserver and
// etcd, built from source, in the namespaces of package lab. It is a module of its
// own, so that svcproxy's has only what svcproxy needs.
package kubernetes
