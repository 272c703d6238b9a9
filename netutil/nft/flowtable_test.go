package nft

import "testing"

func TestReleaseRemovesFlows(t *testing.T) {
	for release, want := range map[string]bool{
		"6.1.0-18-amd64": true, "6.1.32": true, "6.4.0": true, "6.18.44": true, "7.0.0-rc1": true, "10.2": true,
		"5.15.0-100-generic": false, "5.10.0": false, "4.19.0": false, "6.0.9": false, "6.1.21-v8+": false, "6.2.0-39-generic": false, "6.3.9": false, "": false, "x": false,
	} {
		for _, version := range []string{"", "#1 SMP PREEMPT_DYNAMIC Mon Jan 1 00:00:00 UTC 2024", "#40~22.04.1-Ubuntu SMP"} {
			if got := releaseRemovesFlows(release, version); got != want {
				t.Errorf("%q, %q: %v, want %v", release, version, got, want)
			}
		}
	}
}

// Debian's releases have no patch level; its versions have one.
func TestDebianRemovesFlows(t *testing.T) {
	for _, tt := range []struct {
		release, version string
		want             bool
	}{
		{"6.1.0-9-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.27-1 (2023-05-08)", false},
		{"6.1.0-10-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.31-1", false},
		{"6.1.0-10-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.32-1 (2023-06-17)", true},
		{"6.1.0-18-cloud-arm64", "#1 SMP Debian 6.1.76-1 (2024-02-01)", true},
		{"6.1.0-0.deb11.6-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.15-1~bpo11+1 (2023-03-16)", false},
		{"6.1.0-rpi7-rpi-v8", "#1 SMP PREEMPT Debian 1:6.1.63-1+rpt1 (2023-11-24)", true},
		{"6.1.0-rpi1-rpi-v8", "#1 SMP PREEMPT Debian 1:6.1.21-1+rpt1 (2023-04-03)", false},
		{"6.1.0-0-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1~rc7-1~exp1 (2022-11-29)", false},
		{"6.3.0-1-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.3.7-1 (2023-06-12)", false},
		{"6.4.0-1-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.4.4-1 (2023-07-23)", true},
		{"6.12.48+deb13-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1 (2025-09-20)", true},
		{"6.1.140", "#1 SMP Debian ", true},
	} {
		if got := releaseRemovesFlows(tt.release, tt.version); got != tt.want {
			t.Errorf("%q, %q: %v, want %v", tt.release, tt.version, got, tt.want)
		}
	}
}
