package ruleset

import "svcproxy.dev/svcproxy/netutil/nft"

// readings is how often is read what changes meanwhile.
const readings = 4

// stable calls read again where something was committed to nf_tables meanwhile, which the
// kernel tells of a listing too (NLM_F_DUMP_INTR), as long as read returns true. It reports
// whether the last reading can be relied on, or that is not known.
func stable(read func() bool) bool {
	for range readings {
		before, _ := nft.CurrentGeneration() // 0: it is not known
		if !read() {
			return true
		}
		if after, _ := nft.CurrentGeneration(); after == before {
			return true
		}
	}
	return false
}
