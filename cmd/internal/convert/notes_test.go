package convert_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"svcproxy.dev/svcproxy/cmd/internal/convert"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source/read"
)

// A line of the input that says the same as another one is named beside it, or counted.
func TestSameNotesNameTheirLines(t *testing.T) {
	text := "listen a\n mode tcp\n bind 192.0.2.1:80\n"
	for i := range 14 {
		text += fmt.Sprintf(" server s%d 10.0.0.%d:80 maxconn 5\n", i, i+1)
	}
	d, err := document(format(t, "haproxy"), reader.Input{Name: "in", Data: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	const want = "in:4: maxconn of servers is left out (also lines 5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and 3 more); limit connections in the server itself"
	if len(d.Notes) != 1 || d.Notes[0].String() != want {
		t.Errorf("got %v; want %s", d.Notes, want)
	}
}

// More notes than are kept are an error, so that none is left out in silence.
func TestTooManyNotesAreRefused(t *testing.T) {
	var b strings.Builder
	for i := range 200_001 {
		fmt.Fprintf(&b, "vrrp_script s%d {\n}\n", i)
	}
	_, err := document(format(t, "keepalived"), reader.Input{Name: "in", Data: []byte(b.String())})
	const want = "converting to a service file: there is more to say of it than 200000 lines; split it"
	if err == nil || err.Error() != want {
		t.Errorf("error %v; want %s", err, want)
	}
}

// A text is read in the encodings that editors write, with the mark before it.
func TestEncodings(t *testing.T) {
	const text = "*nat\n-A PREROUTING -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1\n"
	units := utf16.Encode([]rune("\ufeff" + text))
	var little, big []byte
	for _, u := range units {
		little, big = binary.LittleEndian.AppendUint16(little, u), binary.BigEndian.AppendUint16(big, u)
	}
	for name, data := range map[string][]byte{"UTF-8": []byte("\ufeff" + text), "UTF-16, little end first": little, "UTF-16, big end first": big} {
		r, err := format(t, "iptables").Read(reader.Input{Name: "in", Data: data})
		if err != nil || len(r.Services) != 1 {
			t.Errorf("%s: error %v", name, err)
		}
	}
	const want = "in:1: a byte of the line is 0: it is no text of UTF-8; write it as one, as iconv -t UTF-8 does"
	if _, err := format(t, "iptables").Read(reader.Input{Name: "in", Data: little[2:]}); err == nil || err.Error() != want {
		t.Errorf("UTF-16 without a mark: error %v; want %s", err, want)
	}
}

// What no file may have as a whole is no service file, also where each service is good.
func TestTooMuchForOneFileIsRefused(t *testing.T) {
	text := ""
	for i := range 5 {
		text += fmt.Sprintf("-A -t 192.0.2.%d:80 -s rr\n-a -t 192.0.2.%d:80 -r 10.0.0.1:80 -m\n-a -t 192.0.2.%d:80 -r 10.0.0.2:80 -m\n", i, i, i)
	}
	for limits, want := range map[read.Limits]string{
		{Services: 4}:   "it has 5 services, more than 4; split it, or raise services in [limits] of svcproxy.toml",
		{FileSize: 500}: "the file has more than 500 bytes; split it, or raise file_size in [limits] of svcproxy.toml",
		{}:              "",
	} {
		r, err := format(t, "ipvsadm").Read(reader.Input{Name: "in", Data: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = convert.Judge{Rules: read.Rules{Limits: limits}}.Document(r, "")
		if got := fmt.Sprint(err); want != "" && got != "converting to a service file: "+want || want == "" && err != nil {
			t.Errorf("%+v: error %v; want %s", limits, err, want)
		}
	}
}

// A configuration of many virtual servers, in both formats that may be large.
func BenchmarkLarge(b *testing.B) {
	for name, server := range map[string]string{
		"keepalived": "virtual_server 10.%[1]d.%[2]d.%[3]d 80 {\n protocol TCP\n lb_algo rr\n real_server 192.168.1.1 80 {\n  TCP_CHECK {\n   connect_timeout 3\n  }\n }\n}\n",
		"haproxy":    "listen web-%[1]d-%[2]d-%[3]d\n mode tcp\n bind 10.%[1]d.%[2]d.%[3]d:80\n server a 192.168.1.1:80 check inter 3s\n",
	} {
		var text strings.Builder
		for i := range 19_000 {
			fmt.Fprintf(&text, server, i>>16, i>>8&255, i&255)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := document(format(b, name), reader.Input{Name: "in", Data: []byte(text.String())}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
