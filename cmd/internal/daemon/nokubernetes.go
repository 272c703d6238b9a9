//go:build nokubernetes

package daemon

import "svcproxy/source"

var newCluster func(*daemon) source.Source
