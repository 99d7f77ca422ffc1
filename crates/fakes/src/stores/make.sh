#!/bin/sh
# Makes what is in this directory, by the keytool of Java 17 and by OpenSSL: an authority, stores that trust it, and
# stores with a key that it has signed; a listener's certificate in PEM. Only tests use any of it.
set -eu
cd "$(dirname "$0")"
rm -f ./*.jks ./*.p12 ./*.pem
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
open="-storepass store-password"
century="-startdate 2020/01/01 -validity 36500"

# signs CSR, with what else is said: the certificate
signs() {
    csr=$1
    shift
    keytool -gencert -rfc -infile "$csr" -alias ca -keystore "$work/ca.p12" $open "$@"
}
# agent STORE ALGORITHM WORDS: a key in a new store, with the certificate that is signed with these words
agent() {
    keytool -genkeypair -alias agent -keyalg "$2" -dname CN=agent -storetype PKCS12 -keystore "$1" $open
    keytool -certreq -alias agent -keystore "$1" $open >"$work/agent.csr"
    signs "$work/agent.csr" $3 >"$work/agent.pem"
    cat "$work/agent.pem" ca.pem | keytool -importcert -noprompt -alias agent -keystore "$1" $open
}
# copy STORE WORDS: the agent's store as another one
copy() {
    keytool $3 -importkeystore -noprompt -srckeystore agent.p12 -srcstorepass store-password -srcalias agent \
        -destkeystore "$1" -deststorepass store-password $2
}

keytool -genkeypair -alias ca -keyalg EC -dname CN=ca -ext bc:critical=ca:true $century -storetype PKCS12 \
    -keystore "$work/ca.p12" $open
keytool -exportcert -rfc -alias ca -keystore "$work/ca.p12" $open >ca.pem
for kind in PKCS12 JKS; do
    keytool -importcert -noprompt -alias ca -file ca.pem -storetype $kind -keystore trust.$kind $open
done
mv trust.PKCS12 trust.p12
mv trust.JKS trust.jks

agent agent.p12 EC "$century"
openssl pkcs12 -in agent.p12 -passin pass:store-password -nocerts -nodes | sed -n '/^-----BEGIN/,/^-----END/p' >agent.key.pem
agent agent-rsa.p12 RSA "$century"
agent agent-expired.p12 EC "-startdate 2020/01/01 -validity 366"
# In JKS a key may have a password of its own.
copy agent.jks "-deststoretype JKS -destkeypass key-password" ""
# With the ciphers that keytool had before Java 8u301: 3DES, and RC2 with 40 bits.
copy agent-legacy.p12 "-deststoretype PKCS12" "-J-Dkeystore.pkcs12.legacy"

openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=listener \
    -keyout listener.key.pem -out "$work/listener.csr"
signs "$work/listener.csr" -ext san=ip:127.0.0.1 $century >listener.pem
