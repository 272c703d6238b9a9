//go:build !nokubernetes

package daemon

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/kubernetes"
)

func init() {
	sourceTypes = append(sourceTypes, sourceType{name: kubernetes.Name, precedence: 20, open: openKubernetes, remote: true, eligibility: true})
}

var (
	_ healthTeller = (*kubernetes.Source)(nil)
	_ holder       = (*kubernetes.Source)(nil)
)

func openKubernetes(c sourceConfig) source.Source {
	k := c.Kubernetes
	return kubernetes.New(kubernetes.Options{
		Kubeconfig: k.Kubeconfig, APIServer: k.APIServer, ProxyName: k.ProxyName,
		NodeName: c.NodeName, UserAgent: "svcproxy/" + c.version,
		StateDir: c.stateDir, Beside: c.several, AllowEmpty: slices.Contains(c.Guard.AllowEmpty, kubernetes.Name), Log: c.log, OnNode: c.host.joined, OnServiceCIDRs: c.host.setServiceCIDRs,
	})
}
