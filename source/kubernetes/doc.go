//go:build !nokubernetes

// Package kubernetes reads services from the API server of a Kubernetes cluster,
// and keeps reading: a Source. Convert does the same once, with Manifests.
//
//	list and watch ──► parse ──► cluster ──► merge ──► sink
//	  a reflector      what we   one owner,  one service
//	  for each kind    need      one copy    and its slices
//
// Stale beats partial: nothing is handed on before services, endpoint slices and
// the node object have all been listed, and only what the API server says itself
// takes a service away, never that it cannot be reached.
//
// What an object means is as in kube-proxy 1.36; what files mean by the same
// thing may differ, and is then said in terms of the model (parse.go, merge.go),
// so that proxier decides for both alike.
package kubernetes
