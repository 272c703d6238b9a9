//go:build netns

package iptables_test

import (
	"testing"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A service of 20,000 frontends comes in pieces, changes, and goes.
func BenchmarkPieces(b *testing.B) {
	for _, variant := range []string{"nft", "legacy"} {
		b.Run(variant, func(b *testing.B) { backendtest.BenchPieces(newHost(b, variant, policy.IPv4).Host, 100, 200) })
	}
}
