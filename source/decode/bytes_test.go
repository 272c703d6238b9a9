package decode

import "testing"

func TestByteSizes(t *testing.T) {
	for text, want := range map[string]ByteSize{
		"0B": 0, "1B": 1, "1023B": 1023, "1KiB": 1 << 10, "1025B": 1025, "1536KiB": 3 << 19, "16MiB": 16 << 20, "1GiB": 1 << 30, "3GiB": 3 << 30,
	} {
		if got, ok := parseBytes(text); !ok || got != want || got.String() != text {
			t.Errorf("%s: %d, %v, printed as %s", text, got, ok, got)
		}
	}
	for _, text := range []string{"", "B", "KiB", "16", "16M", "16MB", "16 MiB", "-1B", "+1B", "1.5GiB", "0x10B", "1_0B", "99999999999GiB"} {
		if got, ok := parseBytes(text); ok {
			t.Errorf("%q is %d", text, got)
		}
	}
}
