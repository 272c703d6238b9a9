//go:build !nokubernetes

package daemon

import (
	"svcproxy/proxier"
	"svcproxy/source"
	"svcproxy/source/kubernetes"
)

// newCluster makes the source that reads a Kubernetes cluster. It is nil in a
// build without.
var newCluster = func(d *daemon) source.Source {
	k := d.fixed.Kubernetes
	src := kubernetes.New(kubernetes.Options{
		Kubeconfig: k.Kubeconfig, APIServer: k.APIServer, ProxyName: k.ProxyName,
		NodeName: d.fixed.NodeName, UserAgent: "svcproxy/" + d.Version,
		StateDir: d.StateDir, Beside: d.besideCluster(), Log: d.log, OnNode: d.joined, OnServiceCIDRs: d.setServiceCIDRs,
	})
	d.server.OnFailure(func(c proxier.HealthCheck, why string) {
		if c.InCluster {
			src.HealthPortFailed(c.Key, c.Port, why)
		}
	})
	return src
}
