package modes

import "testing"

func TestReuseModeIsForSomeKernels(t *testing.T) {
	for release, want := range map[string]int{
		"4.0.9": 0, "4.1.0": 1, "4.19.0-26-amd64": 1, "5.4.0-1": 1, "5.8.18": 1, "5.9.0": 0, "6.1.0-18-amd64": 0, "10.2": 0, "odd": 0, "": 0,
	} {
		if got := reuseSysctls(release); len(got) != want {
			t.Errorf("kernel %q: %v, want %d settings", release, got, want)
		}
	}
}
