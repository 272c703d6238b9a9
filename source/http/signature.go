package http

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"aead.dev/minisign"

	"svcproxy.dev/svcproxy/source"
)

// signatureSuffix is what minisign adds to the name of what it signs.
const signatureSuffix = ".minisig"

// maxSignature is the size of the largest signature, in bytes: minisign writes up to 8 KiB of trusted comment.
const maxSignature = 16 << 10

// ParseKey reads a public key of minisign, the second line of its file.
func ParseKey(text string) (*minisign.PublicKey, error) {
	key := new(minisign.PublicKey)
	if err := key.UnmarshalText([]byte(text)); err != nil || key.String() != text {
		return nil, errors.New("want the second line of a public key of minisign")
	}
	return key, nil
}

// verify returns when a text was signed, in seconds since 1970; 0: the signature does not say so. A key that signs
// several texts vouches for each under its own name: minisign writes the name of the file into the trusted comment, which
// is signed too.
func verify(key *minisign.PublicKey, name string, data, signature []byte) (signed uint64, err error) {
	var s minisign.Signature
	if err := s.UnmarshalText(signature); err != nil {
		return 0, fmt.Errorf("%s is not a signature of minisign", path.Base(name)+signatureSuffix)
	}
	if !minisign.Verify(*key, data, signature) {
		return 0, errors.New("the signature does not match the text and public_key")
	}
	for _, field := range strings.Split(s.TrustedComment, "\t") {
		if of, ok := strings.CutPrefix(field, "file:"); ok && of != path.Base(name) {
			return 0, fmt.Errorf("the signature is of a file %s", source.Excerpt(of))
		}
		if at, ok := strings.CutPrefix(field, "timestamp:"); ok {
			if signed, err = strconv.ParseUint(at, 10, 63); err != nil {
				return 0, errors.New("the timestamp of the signature is not a number")
			}
		}
	}
	return signed, nil
}
