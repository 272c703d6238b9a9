package nft

import "testing"

func TestReleaseRemovesFlows(t *testing.T) {
	for release, want := range map[string]bool{
		"6.1.0-18-amd64": true, "6.1.32": true, "6.4.0": true, "6.18.44": true, "7.0.0-rc1": true, "10.2": true,
		"5.15.0-100-generic": false, "5.10.0": false, "4.19.0": false, "6.0.9": false, "6.1.21-v8+": false, "6.2.0-39-generic": false, "6.3.9": false, "": false, "x": false,
	} {
		if got := releaseRemovesFlows(release); got != want {
			t.Errorf("%q: %v, want %v", release, got, want)
		}
	}
}
